"""Rows, tokens and encodings of a training pass by the packing rules of other trainers, on the same trajectories.

The rules were read in public sources (November 2026) and are counted here, not run:

- ``row a step``: each step's prompt and answer are a row (verl's and TRL's batches of steps).
- ``merged steps``: a step joins the row before it if its prompt begins with that row's tokens, answer included (SkyRL's
  ``merge_stepwise_output``, prime-rl's ``trace_to_samples``).
- ``prefix tree``: tokens with equal prefixes count once over the whole group (AReaL's tree training). An image is
  encoded once for each place in the tree.
- ``trunks``: this project's rows (:mod:`trainer.data.rows`).
"""

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.multi_turn import trajectories
from benchmarks.synthetic_groups import SyntheticBacklog
from dart_streams.config import Config
from trainer.data.rows import RowBuilder, RowKinds
from trainer.data.samples import TrainingSample, select


class Packed(NamedTuple):
    """What a pass computes: rows, their tokens, and images through the vision tower."""

    rows: int
    tokens: int
    images: int


class Sequences:
    """Tokens of samples as the model reads them; an image's tokens are its own negative number."""

    def __init__(self, renderer: Any) -> None:
        self.renderer = renderer
        self.images: dict[str, int] = {}

    def prompt(self, item: TrainingSample) -> list[int]:
        """Return the tokens of a sample's prompt."""
        refs = iter(item.images)
        tokens: list[int] = []
        for token in item.prompt:
            if token == self.renderer.placeholder:
                ref = next(refs)
                number = self.images.setdefault(ref.sha256, -1 - len(self.images))
                tokens += [number] * len(self.renderer.expansion(ref.width, ref.height))
            else:
                tokens.append(token)
        return tokens


def pack_steps(samples: Sequence[TrainingSample], sequences: Sequences) -> Packed:
    """Return the cost of a row a step."""
    tokens = sum(len(sequences.prompt(item)) + len(item.answer) for item in samples)
    return Packed(len(samples), tokens, sum(len(item.images) for item in samples))


def merge_steps(samples: Sequence[TrainingSample], sequences: Sequences) -> Packed:
    """Return the cost of rows that consecutive steps extend, answers included."""
    rows: list[tuple[str, list[int], int]] = []
    for item in sorted(samples, key=lambda item: (item.trajectory_id, item.step)):
        prompt = sequences.prompt(item)
        whole = (item.trajectory_id, [*prompt, *item.answer], len(item.images))
        if rows and rows[-1][0] == item.trajectory_id and prompt[: len(rows[-1][1])] == rows[-1][1]:
            rows[-1] = whole
        else:
            rows.append(whole)
    return Packed(len(rows), sum(len(tokens) for _, tokens, _ in rows), sum(images for *_, images in rows))


def pack_tree(samples: Sequence[TrainingSample], sequences: Sequences) -> Packed:
    """Return the cost of a prefix tree over all samples; its leaves are the rows."""
    ordered = sorted([*sequences.prompt(item), *item.answer] for item in samples)
    shared = [0, *(count_equal(before, after) for before, after in pairwise(ordered))]
    fresh = [tokens[start:] for tokens, start in zip(ordered, shared, strict=True)]
    images = sum(count_images(tokens) for tokens in fresh)
    leaves = sum(start < len(before) for before, start in zip(ordered, [*shared[1:], 0], strict=True))
    return Packed(leaves, sum(map(len, fresh)), images)


def count_equal(before: Sequence[int], after: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False)))


def count_images(tokens: Iterable[int]) -> int:
    """Return the number of images in a run of tokens."""
    return sum(after < 0 and after != before for before, after in pairwise([0, *tokens]))


def pack_trunks(samples: Sequence[TrainingSample], sequences: Sequences) -> Packed:
    """Return the cost of this project's rows."""
    rows = RowBuilder(RowKinds(extended=True, masked=True), sequences.renderer.placeholder).build(samples)
    tokens = sum(len(sequences.prompt(row.trunk)) + sum(len(item.answer) for item in row.branches) for row in rows)
    return Packed(len(rows), tokens, sum(len(row.trunk.images) for row in rows))


PACKERS: Mapping[str, Callable[[Sequence[TrainingSample], Sequences], Packed]] = {
    "row a step": pack_steps,
    "merged steps": merge_steps,
    "prefix tree": pack_tree,
    "trunks": pack_trunks,
}


def compare_packers(group: SyntheticBacklog, config: Config, renderer: Any) -> dict[str, dict[str, int]]:
    """Return what each rule computes for all steps of a group under ``config.policy``'s window."""
    samples = select(group.group, group.group.members, group.observations, renderer, config.policy).samples
    sequences = Sequences(renderer)
    return {name: pack(samples, sequences)._asdict() for name, pack in PACKERS.items()}


def measure(steps: int = trajectories.STEPS) -> dict[str, Any]:
    """Return the comparison for each window, for one trajectory and for a batch."""
    from dart_streams.policy import tiny
    from dart_streams.policy.rendering import renderer_of

    compared: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="packers-bench-") as scratch:
        model = Path(scratch) / "policy"
        tiny.build(model)
        for window in trajectories.WINDOWS:
            config = Config(policy=trajectories.window_policy(Config().policy, window))
            renderer = renderer_of(model, config.policy)
            compared[window] = {
                name: compare_packers(
                    trajectories.record_group(config, renderer, lengths, seed=len(lengths)), config, renderer
                )
                for name, lengths in trajectories.scale_batches(steps).items()
            }
    return compared
