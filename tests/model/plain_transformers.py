"""Plain transformers on one sequence, unpadded: the reference of several tests."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import AutoModelForImageTextToText

from dart_streams.policy import probe
from dart_streams.policy.rendering import Prompt, Renderer, expand


def training_inputs(
    renderer: Renderer, prompt: Prompt, images: Sequence[Image.Image], answer_tokens: Sequence[int]
) -> dict[str, Any]:
    """Return what the model's forward pass takes for one prompt with its answer, which begins at ``answer_start``."""
    assert len(images) == len(prompt.images)
    vision: dict[str, torch.Tensor] = {}
    pads: list[int] = []
    if images:
        vision["pixel_values"], vision["image_grid_thw"] = renderer.pixels(images)
        pads = (vision["image_grid_thw"].prod(-1) // renderer.image_processor.merge_size**2).tolist()
    expanded = expand(prompt.token_ids, renderer.config.image_token_id, pads)
    ids = torch.tensor([*expanded, *answer_tokens], dtype=torch.long)
    return {
        "input_ids": ids,
        "mm_token_type_ids": (ids == renderer.config.image_token_id).to(torch.int32),
        **vision,
        "answer_start": len(expanded),
    }


def measured(model: torch.nn.Module, renderer: Renderer) -> probe.Probe:
    """Return the probe of a loaded model."""
    model.eval()
    prompt, tokens = renderer.prompt(probe.turns()), renderer.answer_tokens(probe.ANSWER)
    inputs = training_inputs(renderer, prompt, [Image.open(io.BytesIO(probe.screen()))], tokens)
    start = inputs.pop("answer_start")
    batch = {name: value[None] if value.ndim == 1 else value for name, value in inputs.items()}
    with torch.no_grad():
        logits = model(**batch, use_cache=False).logits[0, start - 1 : -1].float()
    logp = logits.masked_fill(~renderer.allowed_mask(logits.shape[-1]), -torch.inf).log_softmax(-1)
    chosen = logp.gather(-1, torch.tensor(tokens)[:, None])[:, 0]
    return probe.Probe(prompt=prompt.token_ids, tokens=tokens, logprobs=chosen.tolist())


def measured_of(model_dir: Path, renderer: Renderer) -> probe.Probe:
    """Return the probe of the weights in ``model_dir``, in float32."""
    return measured(AutoModelForImageTextToText.from_pretrained(model_dir, dtype=torch.float32), renderer)
