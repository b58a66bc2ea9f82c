"""A probe: one prompt and what transformers thinks of an answer to it, so that an engine can be held against it."""

import hashlib
import io
from pathlib import Path

import msgspec
import torch
from PIL import Image, ImageDraw
from transformers import Qwen2_5_VLForConditionalGeneration

from dart_streams.policy.batches import answer_logits, collate, log_probabilities
from dart_streams.policy.rendering import Renderer
from topics.values import BlobRef, Turn

FILE = "probe.json"
ANSWER = "Action: click(start_box='(84,120)')"
INSTRUCTION = "Click the button."


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """``logprobs`` (nats) has one entry a token of the answer ``tokens`` to ``prompt`` that shows :func:`screen`."""

    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]


def screen() -> bytes:
    """Return the probe's screenshot, a PNG of the size of a MiniWoB++ page; the same each time."""
    image = Image.new("RGB", (160, 210), "white")
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 0, 160, 50), fill="yellow")
    draw.rectangle((60, 100, 100, 130), fill="lightgrey", outline="black")
    data = io.BytesIO()
    image.save(data, "PNG")
    return data.getvalue()


def turns() -> list[Turn]:
    """Return the probe's prompt."""
    data = screen()
    ref = BlobRef(sha256=hashlib.sha256(data).hexdigest(), size=len(data), width=160, height=210)
    return [Turn(role="user", text=INSTRUCTION), Turn(role="user", image=ref)]


def measure(model_dir: Path, renderer: Renderer) -> Probe:
    """Return the probe of the weights in ``model_dir``, by transformers in float32."""
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(model_dir, dtype=torch.float32).eval()
    prompt, tokens = renderer.prompt(turns()), renderer.answer_tokens(ANSWER)
    batch = collate([renderer.training_inputs(prompt, [Image.open(io.BytesIO(screen()))], tokens)], renderer.pad)
    with torch.no_grad():
        logits_BTV = answer_logits(model, batch)
    log_p_TV = log_probabilities(logits_BTV, renderer.allowed_mask(logits_BTV.shape[-1]))[0]
    chosen_T = log_p_TV.gather(-1, batch["answers"][0][:, None])[:, 0]
    return Probe(prompt=prompt.token_ids, tokens=tokens, logprobs=chosen_T.tolist())


def write(model_dir: Path, renderer: Renderer) -> None:
    """Measure the probe and store it beside the weights."""
    (model_dir / FILE).write_bytes(msgspec.json.encode(measure(model_dir, renderer)))


def read(model_dir: Path) -> Probe | None:
    """Return the stored probe, or None if the directory has none."""
    file = model_dir / FILE
    return msgspec.json.decode(file.read_bytes(), type=Probe) if file.is_file() else None
