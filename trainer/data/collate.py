"""Collation to micro-batches: trunks padded on the left, branches on the right (see :mod:`trainer.data.rows`).

All branches start at the same column. Shapes: R rows, B samples, L tokens (P of the trunk, A of an answer), N answer
tokens, K columns with logits, I distinct images, shown S times.
"""

import itertools
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, TypeVar

import structlog
import torch
from PIL import Image
from torch import Tensor

from dart_streams import pictures
from dart_streams.policy.rendering import ImageInputs, Renderer
from trainer.data.rows import Row, RowBuilder, RowKinds, RowLayout, lay_out, split_row
from trainer.data.samples import ReadyGroup, TrainingSample

log = structlog.get_logger()

Item = TypeVar("Item")
BLANK_SIDE = 56
UNBOUNDED = sys.maxsize


class ModelImage(NamedTuple):
    """An image: (width, height), number of image tokens, model inputs."""

    size: tuple[int, int]
    tokens: int
    inputs: ImageInputs


class PassCost(NamedTuple):
    """What one pass over micro-batches computes: rows, their tokens, and images through the vision tower."""

    rows: int = 0
    tokens: int = 0
    images: int = 0


@dataclass(frozen=True)
class MicroBatch:
    """Input of one forward and backward pass; it has at least one image, so that every rank runs the vision tower.

    ``images`` are model inputs of the distinct images, ``counts_I`` their image tokens, and ``shown_S`` the order in
    which rows show them. ``image_ids`` name them; ``image_lengths`` has, for each input, the lengths of all images
    (None: they cannot be taken apart). ``branch_RL`` is a token's branch within its row (from 1; 0: trunk),
    ``offset_RL`` its index in that branch, ``reach_RL`` the columns of the trunk that it may see. ``kept_K`` are the
    columns whose logits predict an answer, and ``logits_N`` each answer token's place in R rows of them, by sample;
    None: in order. ``corrected_BA`` marks tokens with log-probabilities of the engine. ``versions_BA`` is each token's
    weight version (-1: none). ``scores_BA`` are numbers of the rule ``score``, where ``scored_BA``. ``places`` has each
    sample's trajectory and step. With a critic ``advantage_B1`` has an advantage for each token, (B, A).
    """

    input_ids_RL: Tensor
    attention_mask_RL: Tensor
    token_types_RL: Tensor
    branch_RL: Tensor
    offset_RL: Tensor
    reach_RL: Tensor
    trunk_width: int
    needs_mask: bool
    kept_K: Tensor
    logits_N: Tensor | None
    images: ImageInputs
    counts_I: Tensor
    shown_S: Tensor
    answers_BA: Tensor
    present_BA: Tensor
    mask_BA: Tensor
    rollout_logp_BA: Tensor
    corrected_BA: Tensor
    versions_BA: Tensor
    scores_BA: Tensor
    scored_BA: Tensor
    advantage_B1: Tensor
    temperature_B: Tensor
    places: tuple[tuple[str, int], ...] = ()
    image_ids: tuple[str, ...] = ()
    image_lengths: tuple[tuple[int, ...], ...] | None = None

    def to(self, device: torch.device) -> "MicroBatch":
        """Return a copy on ``device``."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        moved: dict[str, Any] = {name: value.to(device) for name, value in values.items() if isinstance(value, Tensor)}
        return replace(self, **moved, images={name: value.to(device) for name, value in self.images.items()})


class Collator:
    """Collates micro-batches with rows of the ``kinds`` that the model supports; each image is encoded once.

    A row above ``long_row`` tokens has its own pass. Another pass costs as much as ``pass_tokens`` padded tokens.
    """

    def __init__(
        self, renderer: Renderer, kinds: RowKinds | None = None, long_row: int = UNBOUNDED, pass_tokens: int = UNBOUNDED
    ) -> None:
        self.renderer = renderer
        self.long_row = long_row
        self.pass_tokens = pass_tokens
        self.rows = RowBuilder(kinds or RowKinds(), renderer.placeholder)
        self.cost = PassCost()
        """Sums over all micro-batches that were collated."""
        self._images: dict[str, ModelImage] = {}

    def pieces(self, groups: Sequence[ReadyGroup], rows: int, tokens: int) -> list[Sequence[TrainingSample]]:
        """Return the samples in micro-batches of at most ``rows`` rows and ``tokens`` tokens (see :func:`pack`)."""
        sizes = {sha256: pictures.size_of(data) for group in groups for sha256, data in group.images.items()}
        samples = [item for group in groups for item in group.samples]
        built = [(row, self._prompt_length(row.trunk, sizes)) for row in self.rows.build(samples)]
        parts = [part for row, trunk in built for part in split_row(row, tokens - trunk)]
        lengths = [
            self._prompt_length(row.trunk, sizes) + sum(len(item.answer) for item in row.branches) for row in parts
        ]
        if (longest := max(lengths, default=0)) > tokens:
            log.warning(
                "a row is longer than trainer.micro_batch_tokens: it has its own pass", row=longest, bound=tokens
            )
        return [
            [item for row in piece for item in row.samples]
            for piece in pack(parts, lengths, rows, tokens, self.long_row, self.pass_tokens)
        ]

    def batches(
        self, groups: Sequence[ReadyGroup], pieces: Sequence[Sequence[TrainingSample]], count: int
    ) -> Iterator[MicroBatch]:
        """Yield ``pieces`` as ``count`` micro-batches (empty ones last); the next is collated in the background."""
        images = {sha256: data for group in groups for sha256, data in group.images.items()}
        futures: deque[Future[MicroBatch]] = deque()
        with ThreadPoolExecutor(1, thread_name_prefix="collate") as ahead:
            for samples in [*pieces, *[()] * (count - len(pieces))]:
                futures.append(ahead.submit(self.collate, samples, images))
                if len(futures) > 1:
                    yield futures.popleft().result()
            while futures:
                yield futures.popleft().result()

    def collate(self, samples: Sequence[TrainingSample], images: Mapping[str, bytes]) -> MicroBatch:
        """Return samples as a micro-batch in their order; without samples, one that contributes nothing."""
        encoded = self._encoded(samples, images)
        order, pad = list(encoded), self.renderer.pad
        items = samples or [TrainingSample(prompt=[pad], answer=[self.renderer.eos])]
        rows = self.rows.build(items)
        sizes = {sha256: image.size for sha256, image in encoded.items()}
        trunk_RP, trunk_mask_RP = pad_rows([self._expanded(row.trunk, sizes) for row in rows], pad, left=True)
        width = trunk_RP.shape[1]
        layouts = [self._layout(row, sizes, width) for row in rows]
        tokens_RW, tokens_mask_RW = pad_rows([[t for item in row.branches for t in item.answer] for row in rows], pad)
        branch_RW, offset_RW, reach_RW = (
            pad_rows(of_rows, 0)[0]
            for of_rows in zip(*((layout.branch, layout.offset, layout.reach) for layout in layouts), strict=True)
        )
        zeros_RP = torch.zeros_like(trunk_RP)
        ids_RL = torch.cat([trunk_RP, tokens_RW], 1)
        kept, logits = number_columns(rows, layouts, items)
        if samples:
            tokens = int(trunk_mask_RP.sum() + tokens_mask_RW.sum())
            self.cost = PassCost(*map(sum, zip(self.cost, PassCost(len(rows), tokens, len(order)), strict=True)))
        shown = [order.index(ref.sha256) for row in rows for ref in row.trunk.images]
        return MicroBatch(
            input_ids_RL=ids_RL,
            attention_mask_RL=torch.cat([trunk_mask_RP, tokens_mask_RW], 1),
            token_types_RL=(ids_RL == self.renderer.image_token).to(torch.int32),
            branch_RL=torch.cat([zeros_RP, branch_RW], 1),
            offset_RL=torch.cat([zeros_RP, offset_RW], 1),
            reach_RL=torch.cat([zeros_RP + width, reach_RW], 1),
            trunk_width=width,
            needs_mask=any(len(row.branches) > 1 for row in rows),
            kept_K=torch.tensor(kept),
            logits_N=None if logits == list(range(len(rows) * len(kept))) else torch.tensor(logits),
            **self._joined(encoded, images),
            image_ids=tuple(order),
            counts_I=torch.tensor([image.tokens for image in encoded.values()]),
            shown_S=torch.tensor(shown, dtype=torch.long),
            **self._answers(items, used=bool(samples)),
        )

    def _answers(self, items: Sequence[TrainingSample], used: bool) -> dict[str, Any]:
        """Return a micro-batch's fields of the answers; none counts unless ``used``."""
        answers_BA, present_BA = pad_rows([item.answer for item in items], self.renderer.pad)
        logp_BA, scores_BA = torch.zeros(2, *answers_BA.shape)
        versions_BA = torch.full(answers_BA.shape, -1)
        for place, item in enumerate(items):
            logp_BA[place, : len(item.answer)] = torch.tensor(item.logprobs or [0.0] * len(item.answer))
            scores_BA[place, : len(item.answer)] = torch.tensor(item.scores or [0.0] * len(item.answer))
            for segment in item.versions:
                versions_BA[place, segment.start : segment.end] = segment.version
        mask_BA = present_BA.bool() & used
        return {
            "answers_BA": answers_BA,
            "present_BA": present_BA.bool(),
            "mask_BA": mask_BA,
            "rollout_logp_BA": logp_BA,
            "corrected_BA": mask_BA & torch.tensor([[item.logprobs is not None] for item in items]),
            "versions_BA": versions_BA,
            "scores_BA": scores_BA,
            "scored_BA": mask_BA & torch.tensor([[item.scores is not None] for item in items]),
            "advantage_B1": torch.tensor([[item.advantage] for item in items]),
            "temperature_B": torch.tensor([item.temperature for item in items]),
            "places": tuple((item.trajectory_id, item.step) for item in items),
        }

    def _layout(self, row: Row, sizes: Mapping[str, tuple[int, int]], width: int) -> RowLayout:
        """Return the layout of a row whose trunk is padded to ``width``."""
        padding = width - self._prompt_length(row.trunk, sizes)
        return lay_out(row, [padding + self._prompt_length(item, sizes) for item in row.samples], width)

    def _expanded(self, item: TrainingSample, sizes: Mapping[str, tuple[int, int]]) -> list[int]:
        """Return the tokens that the model reads for a sample's prompt."""
        return self.renderer.expanded(item.prompt, [sizes[ref.sha256] for ref in item.images])

    def _prompt_length(self, item: TrainingSample, sizes: Mapping[str, tuple[int, int]]) -> int:
        """Return the number of tokens of :meth:`_expanded`."""
        images = (len(self.renderer.expansion(*sizes[ref.sha256])) for ref in item.images)
        return len(item.prompt) + sum(length - 1 for length in images)

    def _encoded(self, samples: Sequence[TrainingSample], images: Mapping[str, bytes]) -> Mapping[str, ModelImage]:
        """Return the images that ``samples`` show, by sha256; images of the previous micro-batch are reused."""
        wanted = dict.fromkeys(ref.sha256 for item in samples for ref in item.images)
        self._images = {sha256: self._images.get(sha256) or self.encode(images[sha256]) for sha256 in wanted}
        if not self._images:
            self._images = {"": self._encode_image(blank_image())}
        return self._images

    def _joined(self, encoded: Mapping[str, ModelImage], images: Mapping[str, bytes]) -> dict[str, Any]:
        """Return the model inputs of all images, concatenated or, if shapes differ, padded by the image processor."""
        each = [image.inputs for image in encoded.values()]
        if len({tuple((name, value.shape[1:]) for name, value in inputs.items()) for inputs in each}) > 1:
            return {"images": self.renderer.pixels([pictures.decode_picture(images[sha256]) for sha256 in encoded])}
        return {
            "images": {name: torch.cat([inputs[name] for inputs in each]) for name in each[0]},
            "image_lengths": tuple(tuple(len(inputs[name]) for inputs in each) for name in each[0]),
        }

    def encode(self, data: bytes) -> ModelImage:
        """Return an encoded image as model input."""
        return self._encode_image(pictures.decode_picture(data))

    def _encode_image(self, image: Image.Image) -> ModelImage:
        tokens = self.renderer.expansion(*image.size).count(self.renderer.image_token)
        return ModelImage(image.size, tokens, self.renderer.pixels([image]))


def blank_image() -> Image.Image:
    """Return the image of micro-batches that show none."""
    return Image.new("RGB", (BLANK_SIDE, BLANK_SIDE))


def pack(
    items: Sequence[Item],
    lengths: Sequence[int],
    count: int,
    tokens: int,
    long_row: int = UNBOUNDED,
    pass_tokens: int = UNBOUNDED,
) -> Iterator[Sequence[Item]]:
    """Yield consecutive runs of at most ``count`` items and, padded, ``tokens`` tokens.

    An item longer than ``tokens`` or ``long_row`` is alone. The runs have the least padded tokens in all, where a run
    counts as ``pass_tokens`` more: by default the fewest runs.
    """
    costs, starts = [0], [0]
    for end in range(1, len(items) + 1):
        choices: list[tuple[int, int]] = []
        longest = 0
        for start in range(end - 1, max(end - count, 0) - 1, -1):
            longest = max(longest, lengths[start])
            size = end - start
            if size > 1 and (size * longest > tokens or longest > long_row):
                break
            choices.append((costs[start] + size * longest + pass_tokens, start))
        cost, start = min(choices)
        costs.append(cost)
        starts.append(start)
    ends = [len(items)]
    while ends[-1]:
        ends.append(starts[ends[-1]])
    for start, end in itertools.pairwise(reversed(ends)):
        yield items[start:end]


def number_columns(
    rows: Sequence[Row], layouts: Sequence[RowLayout], items: Sequence[TrainingSample]
) -> tuple[list[int], list[int]]:
    """Return the columns with logits in order, and each answer token's place in rows of them, by item."""
    kept = sorted({column for layout in layouts for answer in layout.columns for column in answer})
    index = {column: place for place, column in enumerate(kept)}
    places = {
        id(item): [number * len(kept) + index[column] for column in columns]
        for number, (row, layout) in enumerate(zip(rows, layouts, strict=True))
        for item, columns in zip(row.samples, layout.columns, strict=True)
    }
    return kept, [place for item in items for place in places[id(item)]]


def pad_rows(rows: Sequence[Sequence[int]], pad: int, left: bool = False) -> tuple[Tensor, Tensor]:
    """Return token rows as a tensor (B, longest) padded on one side, and its mask."""
    width = max(map(len, rows))
    ids_BL = torch.full((len(rows), width), pad, dtype=torch.long)
    mask_BL = torch.zeros_like(ids_BL)
    for index, row in enumerate(rows):
        place = slice(width - len(row), width) if left else slice(len(row))
        ids_BL[index, place] = torch.tensor(row, dtype=torch.long)
        mask_BL[index, place] = 1
    return ids_BL, mask_BL
