"""The body of a chat-completion request: the policy's own prompt, and how its answer is to be sampled. Pure.

Whatever a body leaves open a server fills from the model's ``generation_config.json`` (``top_k = 1`` for Qwen2.5-VL),
so that all rollouts of a group would be the same. Every such parameter is therefore sent with its neutral value. Some
hosted models refuse them, and sample neutrally of themselves: ``explicit`` is False for these.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from dart_streams.actions.dialects import Name
from dart_streams.config.openai import Openai
from dart_streams.episodes import prompts
from topics.values import MessagePart, Sampling

NEUTRAL: dict[str, int | float] = {
    "n": 1,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
"""Sampling parameters with which tokens are drawn from the model's own distribution."""
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
"""The native dialect's actions in words, for models that were not trained on them."""


def chat_messages(turns: Sequence[MessagePart], images: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return a prompt as the messages that the policy has; ``images`` are data URLs by sha256."""

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
    """Return a prompt whose system message ends with the instructions; ``width`` and ``height`` are in pixels.

    Without any these are the native dialect's actions in words. Other dialects have their own: two action spaces in one
    prompt would contradict each other.
    """
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
    """Return the body of a request; of a trainable one, tokens that the trainer's policy never draws are ruled out.

    ``explicit``: every sampling parameter is in it, not only those that each endpoint knows.
    """
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
    """Return how many tokens a body lets its answer have."""
    for name in ("max_completion_tokens", "max_tokens"):
        if isinstance(bound := settings.options.get(name), int):
            return bound
    return sampling.max_tokens
