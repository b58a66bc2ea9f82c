"""Chat completions of an OpenAI-compatible endpoint: the body of a request, and what a response says. Pure."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from dart_streams.config.openai import Openai
from topics.values import MessagePart, Sampling
from workers.rollout.engine import EngineFault

LONGEST_TEXT = 2**20
"""Characters of an answer; a record has no room for more."""
LONGEST_TOKEN = 2**31 - 1
NEVER = -100.0
"""The bias of a token that is never sampled; the API's lowest."""
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
"""The actions in words, for models that were not trained on them."""


class EndpointMessage(msgspec.Struct, frozen=True):
    """The answer. A ``refusal`` is one too."""

    content: str | None = None
    refusal: str | None = None


class TokenLogprob(msgspec.Struct, frozen=True):
    """The log-probability (nats) of a sampled token."""

    logprob: float


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


class Completion(msgspec.Struct, frozen=True):
    """A response; ``prompt_token_ids`` is vLLM's."""

    choices: list[Choice]
    usage: Usage | None = None
    prompt_token_ids: list[int] | None = None


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


def text_of(completion: Completion) -> str:
    """Return the text of an answer: a refusal's too, for it is what the model said. Raises EngineFault if too long."""
    message = completion.choices[0].message
    text = message.content or message.refusal or ""
    if len(text) > LONGEST_TEXT:
        raise EngineFault(f"the answer has {len(text)} characters, more than {LONGEST_TEXT}")
    return text


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
    if not all(0 <= token <= LONGEST_TOKEN for token in itertools.chain(tokens, prompt)):
        return "the endpoint gives token ids that are none"
    return SampledTokens(tokens, logprobs, collapsed(prompt, image_token))


def collapsed(token_ids: Sequence[int], image_token: int) -> list[int]:
    """Return a prompt's token ids with each run of image tokens as one: the inverse of ``rendering.expand``."""
    runs = itertools.groupby(token_ids)
    return [token for token, run in runs for _ in (range(1) if token == image_token else run)]


def messages(turns: Sequence[MessagePart], images: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return a prompt as messages, one for each run of turns of a role; ``images`` are data URLs by sha256."""

    def part(turn: MessagePart) -> dict[str, Any]:
        if turn.image is not None:
            return {"type": "image_url", "image_url": {"url": images[turn.image.sha256]}}
        return {"type": "text", "text": turn.text or ""}

    runs = itertools.groupby(turns, key=lambda turn: turn.role)
    return [{"role": role, "content": [part(turn) for turn in of_role]} for role, of_role in runs]


def instructed(turns: Sequence[MessagePart], instructions: str, width: int, height: int) -> list[MessagePart]:
    """Return a prompt whose system message ends with the instructions; ``width`` and ``height`` are in pixels."""
    text = (instructions or UI_TARS).replace("{width}", str(width)).replace("{height}", str(height))
    if turns and turns[0].role == "system":
        first = msgspec.structs.replace(turns[0], text=f"{turns[0].text or ''}\n\n{text}".strip())
        return [first, *turns[1:]]
    return [MessagePart(role="system", text=text), *turns]


def body(
    settings: Openai, prompt: Sequence[dict[str, Any]], sampling: Sampling, banned_tokens: Iterable[int] = ()
) -> bytes:
    """Return the body of a request; of a trainable one, tokens that the trainer's policy never draws are ruled out."""
    fields: dict[str, Any] = {
        "model": settings.model,
        "messages": prompt,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
    }
    if "max_completion_tokens" in settings.options:
        del fields["max_tokens"]
    fields |= settings.options
    if settings.trainable:
        fields |= {"logprobs": True, "return_token_ids": True}
        fields["logit_bias"] = {str(token): NEVER for token in banned_tokens}
    return msgspec.json.encode(fields)


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
