"""Rows: training samples that are read in one pass, because their prompts extend each other. Pure.

The *trunk* of a row is its longest prompt. A sample whose prompt begins the trunk is scored within the row. Its answer
is on the trunk if later prompts repeat its very tokens, as they do in a trajectory. Otherwise it is a *branch*: tokens
after the trunk, which see their own prompt and answer only. A row with one branch is plainly causal, since that branch
continues the longest prompt. A row with several needs an attention mask.
"""

import math
from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import count
from typing import NamedTuple

from trainer.data.samples import TrainingSample


class RowKinds(NamedTuple):
    """Rows that a model scores as it scores samples alone: with steps that extend each other, with several branches."""

    extended: bool = False
    masked: bool = False


class Row(NamedTuple):
    """Samples read in one pass: answers ``on_trunk``, by length of prompt, and ``branches``.

    The first branch has the longest prompt: the trunk.
    """

    branches: list[TrainingSample]
    on_trunk: list[TrainingSample]

    @property
    def trunk(self) -> TrainingSample:
        """The sample with the longest prompt."""
        return self.branches[0]

    @property
    def samples(self) -> list[TrainingSample]:
        """All samples, in the order of their answers in the row."""
        return [*self.on_trunk, *self.branches]


class RowBuilder:
    """Builds rows of the ``kinds`` that the model supports; ``placeholder`` is the prompts' image token."""

    def __init__(self, kinds: RowKinds, placeholder: int) -> None:
        self.kinds = kinds
        self.placeholder = placeholder

    def build(self, samples: Sequence[TrainingSample]) -> list[Row]:
        """Return the rows of samples, in the order of :func:`sort_key`."""
        image_ids: defaultdict[str, int] = defaultdict(count(1).__next__)
        rows: list[Row] = []
        of_trajectory: defaultdict[str, list[tuple[bytes, Row]]] = defaultdict(list)
        of_prompt: dict[bytes, Row] = {}
        for item in sorted(samples, key=lambda item: (-len(item.prompt), item.trajectory_id, item.step)):
            prompt, answer = self._prefix(item, image_ids), array("q", item.answer).tobytes()
            own = of_trajectory[item.trajectory_id] if self.kinds.extended else []
            extending = [(trunk, row) for trunk, row in own if trunk.startswith(prompt)]
            if on_trunk := next((row for trunk, row in extending if trunk.startswith(answer, len(prompt))), None):
                on_trunk.on_trunk.insert(0, item)
                continue
            shared = next((row for _, row in extending), of_prompt.get(prompt))
            if shared is not None and self.kinds.masked:
                shared.branches.append(item)
                continue
            row = Row([item], [])
            rows.append(row)
            of_trajectory[item.trajectory_id].append((prompt, row))
            of_prompt.setdefault(prompt, row)
        return sorted(rows, key=sort_key)

    def _prefix(self, item: TrainingSample, image_ids: defaultdict[str, int]) -> bytes:
        """Return a prompt as comparable bytes, in which an image is its own number in place of the placeholder."""
        images = iter(item.images)
        tokens = (-image_ids[next(images).sha256] if token == self.placeholder else token for token in item.prompt)
        return array("q", tokens).tobytes()


def sort_key(row: Row) -> tuple[int, int, str, int]:
    """Return a sort key: neighbors have similar lengths, so little padding, and then show the same screenshots."""
    trunk = row.trunk
    length = round(4 * math.log2(1 + len(trunk.prompt)))
    return -len(trunk.images), -length, trunk.trajectory_id, trunk.step


def split_row(row: Row, tokens: int) -> Iterator[Row]:
    """Yield a row in parts with at most ``tokens`` answer tokens after the trunk; a longer answer is alone.

    Only branches can move: every part reads the whole trunk of its own longest prompt.
    """
    part: list[TrainingSample] = []
    size, on_trunk = 0, row.on_trunk
    for item in row.branches:
        if part and size + len(item.answer) > tokens:
            yield Row(part, on_trunk)
            part, size, on_trunk = [], 0, []
        part.append(item)
        size += len(item.answer)
    yield Row(part, on_trunk)


class RowLayout(NamedTuple):
    """Columns of a padded row whose trunk ends at a common width; lists of the tokens after the trunk, and columns.

    ``branch`` is a token's branch (from 1), ``offset`` its index in it, ``reach`` the end column of its prompt.
    ``columns`` are, for each sample, the columns whose logits predict its answer.
    """

    branch: list[int]
    offset: list[int]
    reach: list[int]
    columns: list[list[int]]


def lay_out(row: Row, ends: Sequence[int], width: int) -> RowLayout:
    """Return the layout of a row whose samples' prompts end at columns ``ends``, and its trunk at ``width``."""
    layout = RowLayout([], [], [], [])
    on_trunk = len(row.on_trunk)
    for item, end in zip(row.on_trunk, ends[:on_trunk], strict=True):
        layout.columns.append(list(range(end - 1, end - 1 + len(item.answer))))
    for number, (item, end) in enumerate(zip(row.branches, ends[on_trunk:], strict=True), 1):
        start, size = width + len(layout.branch), len(item.answer)
        layout.columns.append([end - 1, *range(start, start + size - 1)][:size])
        layout.branch.extend([number] * size)
        layout.offset.extend(range(size))
        layout.reach.extend([end] * size)
    return layout
