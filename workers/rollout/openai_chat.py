"""Chat completions: request bodies and responses. Pure.

Servers fill missing parameters from ``generation_config.json`` (``top_k = 1`` for Qwen2.5-VL), which would make a
group's rollouts equal, so every parameter is sent with its neutral value. An answer is the model's; truncation, hiding
or parsing by the endpoint is a fault of the endpoint.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from dart_streams.actions.dialects import Name
from dart_streams.config.openai import Openai
from dart_streams.config.text import MALFORMED
from dart_streams.episodes import prompts
from topics.values import MessagePart, Sampling
from workers.rollout.engine import EngineFault

NEUTRAL: dict[str, int | float] = {
    "n": 1,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
"""Sampling parameters that leave the model's distribution unchanged."""
NEVER = -100.0
"""Lowest ``logit_bias`` of the API, for tokens never sampled."""
UI_TARS = """\
The newest image is the screen: {width} x {height} pixels, (0,0) is the upper left corner. \
Answer in exactly this form, with one action and nothing behind it:
Thought: why
Action: one of these calls
click(start_box='(x,y)'), left_double(start_box='(x,y)'), right_single(start_box='(x,y)')
drag(start_box='(x,y)', end_box='(x,y)')
scroll(start_box='(x,y)', direction='up')  (or down, left, right)
type(content='text')  (\\n at its end presses Enter)
hotkey(key='ctrl c')  (keys separated by spaces)
wait()
finished(content='answer')  (the task is done)
call_user()  (the task cannot be done)"""
"""The native dialect in words, for models not trained on it."""
MAX_CHARACTERS = 2**20
"""Maximum characters of an answer in a record."""
MAX_TOKEN_ID = 2**31 - 1
ENDED = frozenset({None, "stop", "eos", "eos_token", "stop_sequence", "end_turn", "length", "max_tokens"})
"""``finish_reason`` values of answers that the model ended or that reached their limit."""
BOUND = frozenset({"length", "max_tokens"})
REASONS = {
    "content_filter": "its content filter removed text of the answer",
    "tool_calls": "it parsed the answer as tool calls: serve the model without a tool parser",
    "function_call": "it parsed the answer as a function call: serve the model without a tool parser",
    "model_length": "the model's context is full: set smaller policy.max_images, policy.max_texts or policy.max_tokens",
    "abort": "it aborted the answer",
}
"""Explanations of other ``finish_reason`` values, which are faults of the endpoint."""


class EndpointMessage(msgspec.Struct, frozen=True):
    """An answer; a ``refusal`` counts as text, reasoning and tool calls do not."""

    content: str | None = None
    refusal: str | None = None
    reasoning: Any = None
    reasoning_content: Any = None
    tool_calls: Any = None


class TokenLogprob(msgspec.Struct, frozen=True):
    """Log-probability (nats) of a sampled token and of requested alternatives."""

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
    """Token counts."""

    prompt_tokens: int = 0
    completion_tokens: int | None = None


class Completion(msgspec.Struct, frozen=True):
    """A response; ``prompt_token_ids`` is vLLM's."""

    choices: list[Choice]
    usage: Usage | None = None
    prompt_token_ids: list[int] | None = None


class ListedModel(msgspec.Struct, frozen=True):
    """A model of an endpoint; ``max_model_len`` is vLLM's."""

    id: str = ""
    max_model_len: int | None = None


class ModelList(msgspec.Struct, frozen=True):
    """Models of an endpoint."""

    data: list[ListedModel]


class SampledTokens(msgspec.Struct, frozen=True):
    """Tokens of an answer with log-probabilities (nats), and the prompt's tokens with one token an image."""

    tokens: list[int]
    logprobs: list[float]
    prompt: list[int]


def chat_messages(turns: Sequence[MessagePart], images: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return a prompt as chat messages; ``images`` are data URLs by sha256."""

    def part(turn: MessagePart) -> dict[str, Any]:
        if turn.image is not None:
            return {"type": "image_url", "image_url": {"url": images[turn.image.sha256]}}
        return {"type": "text", "text": turn.text or ""}

    return [
        {"role": message[0].role, "content": [part(turn) for turn in message]}
        for message in prompts.split_messages(turns)
    ]


def add_instructions(
    turns: Sequence[MessagePart], instructions: str, dialect: Name, width: int, height: int
) -> list[MessagePart]:
    """Return a prompt whose system message ends with the instructions; only the native dialect has default ones."""
    text = instructions or (UI_TARS if dialect == "native" else "")
    if not text:
        return list(turns)
    text = text.replace("{width}", str(width)).replace("{height}", str(height))
    if turns and turns[0].role == "system":
        first = msgspec.structs.replace(turns[0], text=f"{turns[0].text or ''}\n\n{text}".strip())
        return [first, *turns[1:]]
    return [MessagePart(role="system", text=text), *turns]


def request_body(
    settings: Openai,
    prompt: Sequence[dict[str, Any]],
    sampling: Sampling,
    banned_tokens: Iterable[int] = (),
    *,
    explicit: bool = True,
    **others: Any,
) -> bytes:
    """Return a body; trainable ones ban tokens never sampled. ``explicit`` sends every sampling parameter."""
    fields: dict[str, Any] = {
        "model": settings.model,
        "messages": prompt,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
    }
    if explicit:
        fields |= NEUTRAL
    if "max_completion_tokens" in settings.options:
        del fields["max_tokens"]
    fields |= settings.options
    if settings.trainable:
        fields |= {"logprobs": True, "return_token_ids": True}
        fields["logit_bias"] = {str(token): NEVER for token in banned_tokens}
    return msgspec.json.encode(fields | others)


def most_tokens(settings: Openai, sampling: Sampling) -> int:
    """Return the answer's token limit in a body."""
    for name in ("max_completion_tokens", "max_tokens"):
        if isinstance(bound := settings.options.get(name), int):
            return bound
    return sampling.max_tokens


_decode = msgspec.json.Decoder(Completion).decode


def decode(data: bytes) -> Completion:
    """Decode a response's body; raise EngineFault if it is no chat completion with an answer."""
    try:
        completion = _decode(data)
    except MALFORMED as error:
        raise EngineFault(f"the endpoint's response is not a chat completion: {error}") from None
    if not completion.choices:
        raise EngineFault("the endpoint's response has no choices")
    return completion


def context_of(data: bytes, model: str) -> int | None:
    """Return a model's context length from an endpoint's model list; None if not listed."""
    try:
        listed = msgspec.json.decode(data, type=ModelList).data
    except MALFORMED:
        return None
    return next((each.max_model_len for each in listed if each.id == model), None)


def text_of(completion: Completion, most_tokens: int) -> str:
    """Return an answer's text, refusals included; raise EngineFault for faults and hidden answers."""
    refuse_faults(completion, most_tokens)
    choice = completion.choices[0]
    message = choice.message
    if message.tool_calls:
        raise EngineFault(f"the endpoint's answer has no text: {REASONS['tool_calls']}")
    if not (text := message.content or message.refusal or ""):
        refuse_hidden(completion)
    return text


def refuse_faults(completion: Completion, most_tokens: int) -> None:
    """Raise EngineFault unless the model ended its answer or used its ``most_tokens``."""
    choice = completion.choices[0]
    if choice.finish_reason not in ENDED:
        why = REASONS.get(choice.finish_reason or "", "unknown finish reason")
        raise EngineFault(f"the endpoint ended the answer with finish_reason {choice.finish_reason!r}: {why}")
    count = completion.usage.completion_tokens if completion.usage else None
    if choice.finish_reason in BOUND and count is not None and count + 1 < most_tokens:
        raise EngineFault(
            f"the endpoint ended the answer after {count} tokens of {most_tokens}: its context is full, or it has a "
            "lower limit. Set smaller policy.max_images, policy.max_texts or policy.max_tokens"
        )
    text = choice.message.content or choice.message.refusal or ""
    if len(text) > MAX_CHARACTERS:
        raise EngineFault(f"the answer has {len(text)} characters, more than {MAX_CHARACTERS}")


def refuse_hidden(completion: Completion) -> None:
    """Raise EngineFault if an answer without text has tokens, which are then reasoning."""
    choice = completion.choices[0]
    count = completion.usage.completion_tokens if completion.usage else None
    reasoned = choice.message.reasoning or choice.message.reasoning_content
    if reasoned or choice.finish_reason in {None, *BOUND} or (count or 0) > 1:
        counted = f"all {count} tokens" if count else "the tokens"
        raise EngineFault(
            f"the endpoint's answer has no text, {counted} are reasoning or hidden: set policy.max_tokens "
            "higher, switch reasoning off (rollout.openai.options), or serve the model without a reasoning parser"
        )


def sampled_tokens(completion: Completion, image_token: int) -> SampledTokens | str:
    """Return an answer's trainable tokens, or the reason why there are none."""
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
        return "the endpoint gives invalid log-probabilities"
    if not all(0 <= token <= MAX_TOKEN_ID for token in itertools.chain(tokens, prompt)):
        return "the endpoint gives invalid token ids"
    return SampledTokens(tokens, logprobs, collapse_images(prompt, image_token))


def collapse_images(token_ids: Sequence[int], image_token: int) -> list[int]:
    """Return token ids with each run of image tokens as one: the inverse of ``rendering.expand``."""
    runs = itertools.groupby(token_ids)
    return [token for token, run in runs for _ in (range(1) if token == image_token else run)]


def retry_after_s(value: str | None, date: str | None) -> float | None:
    """Return the wait (seconds) in ``Retry-After``, a time of which is relative to ``date``; None without one."""
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
