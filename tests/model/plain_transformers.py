"""Plain transformers on one sequence, unpadded: the reference of several tests."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import AutoModelForImageTextToText

from dart_streams.policy import probe
from dart_streams.policy.rendering import Prompt, Renderer


def training_inputs(
    renderer: Renderer, prompt: Prompt, images: Sequence[Image.Image], answer_tokens: Sequence[int]
) -> dict[str, Any]:
    """Return what the model's forward pass takes for one prompt with its answer, which begins at ``answer_start``."""
    assert len(images) == len(prompt.images)
    expanded = renderer.expanded(prompt.token_ids, [image.size for image in images])
    ids = torch.tensor([*expanded, *answer_tokens], dtype=torch.long)
    types = {"mm_token_type_ids": (ids == renderer.image_token).to(torch.int32)}
    return {
        "input_ids": ids,
        **(types if "mm_token_type_ids" in renderer.processor.model_input_names else {}),
        **(renderer.pixels(images) if images else {}),
        "answer_start": len(expanded),
    }


def measured(model: torch.nn.Module, renderer: Renderer) -> probe.Probe:
    """Return the probe of a loaded model."""
    model.eval()
    prompt, tokens = renderer.prompt(probe.probe_turns()), renderer.answer_tokens(probe.ANSWER)
    inputs = training_inputs(renderer, prompt, [Image.open(io.BytesIO(probe.draw_screen()))], tokens)
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
