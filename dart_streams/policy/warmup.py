"""The supervised warm-up: the tiny policy imitates demonstrations until it knows what an answer looks like.

It stops early on purpose. What it leaves to learn is learned from reward.
"""

import io
import math
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from transformers import Qwen2_5_VLForConditionalGeneration

from dart_streams.config import Warmup
from dart_streams.policy import weights
from dart_streams.policy.batches import answer_logits, collate, log_probabilities
from dart_streams.policy.demonstrations import SftSample
from dart_streams.policy.patches import make_cheap
from dart_streams.policy.rendering import Renderer

RAMP = 20
"""Steps over which the learning rate rises."""
FLOOR = 0.1
"""The share of the learning rate that is left at the end."""
GRAD_CLIP = 1.0
WEIGHT_DECAY = 0.01

Progress = Callable[[int, float], None]
"""Called after each step with the number of steps done and the loss (nats a token)."""


def warm_up(
    model_dir: Path,
    renderer: Renderer,
    samples: Sequence[SftSample],
    settings: Warmup,
    progress: Progress,
    seed: int = 0,
) -> None:
    """Train the model in ``model_dir`` in place on random batches of ``samples``, at least one."""
    if not samples:
        raise ValueError("no samples to warm up on")
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(model_dir, dtype=torch.float32)
    make_cheap(model)
    model.train()
    allowed_V = renderer.allowed_mask(model.lm_head.out_features)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, weight_decay=WEIGHT_DECAY, betas=(0.9, 0.98)
    )
    for step, batch in enumerate(batches(renderer, samples, settings, random.Random(seed))):
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * schedule(step, settings.steps)
        loss = imitation_loss(answer_logits(model, batch), batch, allowed_V)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), GRAD_CLIP)
        optimizer.step()
        progress(step + 1, loss.item())
    weights.save(model.state_dict(), str(model_dir))


def schedule(step: int, steps: int) -> float:
    """Return the share of the learning rate at ``step``: a linear rise, then half a cosine down to ``FLOOR``."""
    rise = min(1.0, (step + 1) / min(RAMP, steps))
    return rise * (FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * step / steps)))


def batches(
    renderer: Renderer, samples: Sequence[SftSample], settings: Warmup, chance: random.Random
) -> Iterator[dict[str, Tensor]]:
    """Yield a random batch a step; each is made in the background while the one before is trained on."""
    with ThreadPoolExecutor(1, thread_name_prefix="batches") as ahead:
        made = ahead.submit(batch_of, renderer, chance.choices(samples, k=settings.batch))
        for step in range(settings.steps):
            current = made.result()
            if step + 1 < settings.steps:
                made = ahead.submit(batch_of, renderer, chance.choices(samples, k=settings.batch))
            yield current


def batch_of(renderer: Renderer, samples: Sequence[SftSample]) -> dict[str, Tensor]:
    """Return the padded batch of these samples."""
    inputs = []
    for sample in samples:
        prompt = renderer.prompt(sample.turns)
        images = [Image.open(io.BytesIO(sample.images[ref.sha256])).convert("RGB") for ref in prompt.images]
        inputs.append(renderer.training_inputs(prompt, images, renderer.answer_tokens(sample.answer)))
    return collate(inputs, renderer.pad)


def imitation_loss(logits_BTV: Tensor, batch: dict[str, Tensor], allowed_V: Tensor) -> Tensor:
    """Return the mean negative log-likelihood of the answers' tokens (nats), over the tokens that may be sampled."""
    log_p_BTV = log_probabilities(logits_BTV, allowed_V)
    log_p_BT = log_p_BTV.gather(-1, batch["answers"][..., None])[..., 0]
    return -log_p_BT[batch["answer_mask"]].mean()
