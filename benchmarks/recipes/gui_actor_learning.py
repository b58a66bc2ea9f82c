"""Training of the head with its policy, and of the verifier, on demonstrated clicks."""

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from dart_recipes.gui_actor.grounding import Asked, Grounder, HeadOutput
from dart_recipes.gui_actor.head import attention_loss
from dart_recipes.gui_actor.patches import Box, Point, contains, label_patches, propose_points
from dart_streams.config import Warmup
from trainer.learning.schedule import rate_share
from trainer.warmup.build import GRAD_CLIP, RAMP, WEIGHT_DECAY

ATTEMPTS = 50
"""Draws of a point outside of the target."""


class Shown(NamedTuple):
    """A demonstrated click: its prompt, and the target's box in pixels of the last image."""

    asked: Asked
    box: Box


def draw_batches(shown: Sequence[Shown], batch: int, steps: int, seed: int) -> Iterator[list[Shown]]:
    """Yield batches, drawn as :func:`trainer.warmup.build.warm_up` draws its own of as many samples."""
    generator = random.Random(seed)
    for _ in range(steps):
        yield generator.choices(shown, k=batch)


def train_head(grounder: Grounder, shown: Sequence[Shown], settings: Warmup, seed: int) -> list[float]:
    """Train policy and head on the divergence from the target's patches; return the losses (nats)."""
    losses = []
    taught = [*grounder.scorer.parameters(), *grounder.head.parameters()]
    optimizer = torch.optim.AdamW(taught, lr=settings.learning_rate, weight_decay=WEIGHT_DECAY, betas=(0.9, 0.98))
    for step, batch in enumerate(draw_batches(shown, settings.batch, settings.steps, seed)):
        logits_BM = grounder.attend([each.asked for each in batch]).logits_BM
        labels = [torch.tensor(label_patches(each.asked.grid, each.box)) for each in batch]
        loss = attention_loss(logits_BM, nn.utils.rnn.pad_sequence(labels, batch_first=True))
        update(optimizer, loss, taught, settings.learning_rate * rate_share(step, settings.steps, RAMP))
        losses.append(loss.item())
    return losses


def train_verifier(grounder: Grounder, shown: Sequence[Shown], settings: Warmup, seed: int) -> list[float]:
    """Train the verifier alone to tell points in the box from others; return the losses (nats)."""
    losses = []
    generator = random.Random(seed)
    taught = [*grounder.verifier.parameters()]
    optimizer = torch.optim.AdamW(taught, lr=settings.learning_rate, weight_decay=WEIGHT_DECAY, betas=(0.9, 0.98))
    for step, batch in enumerate(draw_batches(shown, settings.batch, settings.steps, seed)):
        with torch.no_grad():
            attention = grounder.attend([each.asked for each in batch])
        rows, points = trial_points(batch, attention, generator)
        repeated = HeadOutput(*(part[torch.tensor(rows)] for part in attention))
        logits_N = grounder.verify([batch[row].asked for row in rows], repeated, points)
        right_N = torch.tensor(
            [float(contains(batch[row].box, point)) for row, point in zip(rows, points, strict=True)]
        )
        loss = functional.binary_cross_entropy_with_logits(logits_N, right_N)
        update(optimizer, loss, taught, settings.learning_rate * rate_share(step, settings.steps, RAMP))
        losses.append(loss.item())
    return losses


def trial_points(
    batch: Sequence[Shown], attention: HeadOutput, generator: random.Random
) -> tuple[list[int], list[Point]]:
    """Return points to judge with the rows that they belong to: one in each box, one outside, and all candidates."""
    rows, points = [], []
    for row, each in enumerate(batch):
        weights = attention.logits_BM[row].softmax(-1)[: each.asked.images[-1].tokens].tolist()
        trials = [draw_inside(each.box, generator), *draw_outside(each, generator)]
        trials += propose_points(each.asked.grid, weights)
        rows += [row] * len(trials)
        points += trials
    return rows, points


def draw_inside(box: Box, generator: random.Random) -> Point:
    """Return a random point of a box."""
    left, top, right, bottom = box
    return generator.uniform(left, right), generator.uniform(top, bottom)


def draw_outside(shown: Shown, generator: random.Random) -> list[Point]:
    """Return a random point of the screen outside of the box; none if the box leaves too little room."""
    grid = shown.asked.grid
    for _ in range(ATTEMPTS):
        point = generator.uniform(0, grid.width), generator.uniform(0, grid.height)
        if not contains(shown.box, point):
            return [point]
    return []


def update(optimizer: torch.optim.Optimizer, loss: torch.Tensor, taught: list[nn.Parameter], rate: float) -> None:
    """Take one optimizer step at a learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(taught, GRAD_CLIP)
    optimizer.step()
