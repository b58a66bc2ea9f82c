"""A probe: one prompt with the log-probabilities that transformers gives an answer to it, to check an engine against.

The trainer stores one beside each version of the weights; a rollout worker compares its engine with it at its start.
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
    """An engine and transformers disagree about the same weights: what it generates must not be trained on."""


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """``logprobs`` (nats) has one entry a token of the answer ``tokens`` to ``prompt`` that shows :func:`draw_screen`.

    ``dtype`` is what the layers computed in.
    """

    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]
    dtype: str = "float32"


def draw_screen() -> bytes:
    """Return the probe's screenshot, a PNG of the size of a MiniWoB++ page; the same each time."""
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
    """Return the probe stored beside weights, or None if the directory has none."""
    file = model_dir / weights.PROBE
    return msgspec.json.decode(file.read_bytes(), type=Probe) if file.is_file() else None


def refuse_other_rendering(probe: Probe, renderer: Renderer) -> None:
    """Raise :class:`ParityFault` unless ``renderer`` makes the prompt and the answer that ``probe`` was stored with."""
    own = {"prompt": renderer.prompt(probe_turns()).token_ids, "answer": renderer.answer_tokens(ANSWER)}
    for part, stored in (("prompt", probe.prompt), ("answer", probe.tokens)):
        if own[part] != stored:
            raise ParityFault(
                f"this rollout worker makes other tokens of the probe's {part} than the trainer does: give both the "
                "same tokenizer and chat template (policy.path)"
            )


def mean_mismatch(probe: Probe, logprobs: Sequence[float]) -> float:
    """Return how far an engine's ``logprobs`` of the probe's tokens are from the stored ones: a mean, in nats."""
    return sum(abs(own - stored) for own, stored in zip(logprobs, probe.logprobs, strict=True)) / len(probe.logprobs)
