"""A probe: a fixed prompt and transformers' log-probabilities of an answer, to verify an engine against.

The trainer stores one with each version; a rollout worker compares its engine with it at start.
"""

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path

import msgspec
from PIL import Image, ImageDraw

from dart_streams.errors import UserError
from dart_streams.policy import weights
from dart_streams.policy.rendering import Renderer
from topics.values import BlobRef, MessagePart

ANSWER = "Action: click(start_box='(84,120)')"
INSTRUCTION = "Click the button."


class ParityFault(UserError):
    """Engine and transformers disagree about the same weights, so generated answers must not be trained on."""


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """A probe; ``logprobs`` (nats) has one entry a token of the answer ``tokens``.

    ``prompt`` shows :func:`draw_screen`; ``dtype`` is the layers' type.
    """

    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]
    dtype: str = "float32"


def draw_screen() -> bytes:
    """Return the probe's screenshot, a constant PNG of the size of a MiniWoB++ page."""
    image = Image.new("RGB", (160, 210), "white")
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 0, 160, 50), fill="yellow")
    draw.rectangle((60, 100, 100, 130), fill="lightgrey", outline="black")
    data = io.BytesIO()
    image.save(data, "PNG")
    return data.getvalue()


def probe_turns() -> list[MessagePart]:
    """Return the probe's prompt."""
    data = draw_screen()
    ref = BlobRef(sha256=hashlib.sha256(data).hexdigest(), size=len(data), width=160, height=210)
    return [MessagePart(role="user", text=INSTRUCTION), MessagePart(role="user", image=ref)]


def read(model_dir: Path) -> Probe | None:
    """Return the probe stored with weights, or None."""
    file = model_dir / weights.PROBE
    return msgspec.json.decode(file.read_bytes(), type=Probe) if file.is_file() else None


def refuse_other_rendering(probe: Probe, renderer: Renderer) -> None:
    """Raise :class:`ParityFault` unless ``renderer`` yields the tokens of ``probe``."""
    own = {"prompt": renderer.prompt(probe_turns()).token_ids, "answer": renderer.answer_tokens(ANSWER)}
    for part, stored in (("prompt", probe.prompt), ("answer", probe.tokens)):
        if own[part] != stored:
            raise ParityFault(
                f"this rollout worker makes other tokens of the probe's {part} than the trainer does: give both the "
                "same tokenizer and chat template (policy.path)"
            )


def mean_mismatch(probe: Probe, logprobs: Sequence[float]) -> float:
    """Return the mean absolute difference (nats) of an engine's ``logprobs`` from the stored ones."""
    return sum(abs(own - stored) for own, stored in zip(logprobs, probe.logprobs, strict=True)) / len(probe.logprobs)
