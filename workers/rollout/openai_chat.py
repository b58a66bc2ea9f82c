"""Chat completions of an OpenAI-compatible endpoint: what a response says. Pure.

An answer is the model's; what the endpoint itself took, hid, parsed or broke off is a fault of the endpoint.
"""

import itertools
import math
from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from workers.rollout.engine import EngineFault

MAX_CHARACTERS = 2**20
"""Characters of an answer; a record has no room for more."""
MAX_TOKEN_ID = 2**31 - 1
ENDED = frozenset({None, "stop", "eos", "eos_token", "stop_sequence", "end_turn", "length", "max_tokens"})
"""What endpoints give as ``finish_reason`` of an answer that the model itself ended, or that reached its bound."""
BOUND = frozenset({"length", "max_tokens"})
REASONS = {
    "content_filter": "its content filter took the answer, or a part of it",
    "tool_calls": "it made tool calls of the answer: serve the model without a tool parser",
    "function_call": "it made a function call of the answer: serve the model without a tool parser",
    "model_length": "the model's context is full: set smaller policy.max_images, policy.max_texts or policy.max_tokens",
    "abort": "it broke off the answer",
}
"""Why an answer that ended otherwise is a fault of the endpoint, and no wrong answer of the model."""


class EndpointMessage(msgspec.Struct, frozen=True):
    """The answer. A ``refusal`` is one too; reasoning and tool calls, in whatever form, are none."""

    content: str | None = None
    refusal: str | None = None
    reasoning: Any = None
    reasoning_content: Any = None
    tool_calls: Any = None


class TokenLogprob(msgspec.Struct, frozen=True):
    """The log-probability (nats) of a sampled token, and those of others that were asked for."""

    logprob: float
    token: str = ""
    top_logprobs: "list[TokenLogprob] | None" = None


class Logprobs(msgspec.Struct, frozen=True):
    """One entry per sampled token."""

    content: list[TokenLogprob] | None = None


class Choice(msgspec.Struct, frozen=True):
    """An answer; ``token_ids`` is vLLM's (``return_token_ids``)."""

    message: EndpointMessage
    finish_reason: str | None = None
    logprobs: Logprobs | None = None
    token_ids: list[int] | None = None


class Usage(msgspec.Struct, frozen=True):
    """Tokens that were counted."""

    prompt_tokens: int = 0
    completion_tokens: int | None = None


class Completion(msgspec.Struct, frozen=True):
    """A response; ``prompt_token_ids`` is vLLM's."""

    choices: list[Choice]
    usage: Usage | None = None
    prompt_token_ids: list[int] | None = None


class ListedModel(msgspec.Struct, frozen=True):
    """A model of an endpoint's list; ``max_model_len`` is vLLM's."""

    id: str = ""
    max_model_len: int | None = None


class ModelList(msgspec.Struct, frozen=True):
    """The models of an endpoint."""

    data: list[ListedModel]


class SampledTokens(msgspec.Struct, frozen=True):
    """The tokens of an answer with their log-probabilities (nats), one each, and the prompt's as the endpoint made it.

    An image is a single ``image token`` of the prompt, as in :class:`~dart_streams.policy.rendering.Prompt`.
    """

    tokens: list[int]
    logprobs: list[float]
    prompt: list[int]


_decode = msgspec.json.Decoder(Completion).decode


def decode(data: bytes) -> Completion:
    """Decode a response's body; raise EngineFault if it is no chat completion with an answer."""
    try:
        completion = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EngineFault(f"the endpoint's response is no chat completion: {error}") from None
    if not completion.choices:
        raise EngineFault("the endpoint's response has no choices")
    return completion


def context_of(data: bytes, model: str) -> int | None:
    """Return the tokens of a model's context from an endpoint's list of models; None if that does not say."""
    try:
        listed = msgspec.json.decode(data, type=ModelList).data
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return next((one.max_model_len for one in listed if one.id == model), None)


def text_of(completion: Completion, most_tokens: int) -> str:
    """Return the text of an answer of at most ``most_tokens``: a refusal's too, for it is what the model said.

    Raises EngineFault for what says nothing about the model's answer: see :func:`refuse_faults`, or an answer without a
    text that has tokens all the same.
    """
    refuse_faults(completion, most_tokens)
    choice = completion.choices[0]
    message = choice.message
    if message.tool_calls:
        raise EngineFault(f"the endpoint's answer is no text: {REASONS['tool_calls']}")
    if not (text := message.content or message.refusal or ""):
        refuse_hidden(completion)
    return text


def refuse_faults(completion: Completion, most_tokens: int) -> None:
    """Raise EngineFault unless the model ended its answer, or the answer has the ``most_tokens`` it was allowed."""
    choice = completion.choices[0]
    if choice.finish_reason not in ENDED:
        why = REASONS.get(choice.finish_reason or "", "that is not known as the end of an answer")
        raise EngineFault(f"the endpoint ended the answer with finish_reason {choice.finish_reason!r}: {why}")
    made = completion.usage.completion_tokens if completion.usage else None
    if choice.finish_reason in BOUND and made is not None and made + 1 < most_tokens:
        raise EngineFault(
            f"the endpoint ended the answer after {made} tokens of {most_tokens}: its context is full, or it has a "
            "smaller bound of its own. Set smaller policy.max_images, policy.max_texts or policy.max_tokens"
        )
    text = choice.message.content or choice.message.refusal or ""
    if len(text) > MAX_CHARACTERS:
        raise EngineFault(f"the answer has {len(text)} characters, more than {MAX_CHARACTERS}")


def refuse_hidden(completion: Completion) -> None:
    """Raise EngineFault if an answer without a text has tokens, which are then reasoning; one may also be empty."""
    choice = completion.choices[0]
    made = completion.usage.completion_tokens if completion.usage else None
    reasoned = choice.message.reasoning or choice.message.reasoning_content
    if reasoned or choice.finish_reason in {None, *BOUND} or (made or 0) > 1:
        counted = f"all {made} tokens" if made else "the tokens"
        raise EngineFault(
            f"the endpoint's answer has no text, {counted} of it are reasoning or hidden: set policy.max_tokens "
            "higher, switch reasoning off (rollout.openai.options), or serve the model without a reasoning parser"
        )


def sampled_tokens(completion: Completion, image_token: int) -> SampledTokens | str:
    """Return the tokens that an answer can be trained on; if it has none, why in words."""
    choice, prompt = completion.choices[0], completion.prompt_token_ids
    tokens, entries = choice.token_ids, choice.logprobs.content if choice.logprobs else None
    if not tokens or not prompt:
        return "the endpoint gives no token ids (return_token_ids)"
    if not entries:
        return "the endpoint gives no log-probabilities"
    logprobs = [entry.logprob for entry in entries]
    if len(logprobs) != len(tokens):
        return f"the endpoint gives {len(tokens)} token ids and {len(logprobs)} log-probabilities"
    if not all(math.isfinite(logprob) and logprob <= 1e-6 for logprob in logprobs):
        return "the endpoint gives log-probabilities that are none"
    if not all(0 <= token <= MAX_TOKEN_ID for token in itertools.chain(tokens, prompt)):
        return "the endpoint gives token ids that are none"
    return SampledTokens(tokens, logprobs, collapse_images(prompt, image_token))


def collapse_images(token_ids: Sequence[int], image_token: int) -> list[int]:
    """Return a prompt's token ids with each run of image tokens as one: the inverse of ``rendering.expand``."""
    runs = itertools.groupby(token_ids)
    return [token for token, run in runs for _ in (range(1) if token == image_token else run)]


def retry_after_s(value: str | None, date: str | None) -> float | None:
    """Return how long a response asks to wait, in seconds; None if it does not say.

    ``value`` is its ``Retry-After``: seconds, or a time, which counts from the response's own ``Date``.
    """
    if value is None:
        return None
    value = value.strip()
    try:
        seconds = float(value)
    except ValueError:
        pass
    else:
        return max(0.0, seconds) if math.isfinite(seconds) else None
    try:
        return max(0.0, (parsedate_to_datetime(value) - parsedate_to_datetime(date or "")).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return None
