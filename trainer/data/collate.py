"""Collation to micro-batches: prompts padded on the left, answers on the right.

A row is a prompt with one answer or, if the model allows, with all answers to it; these do not attend to each other.
All answers start at the same column. Shapes: R rows, B samples, L tokens (P of the prompt, A of an answer), I distinct
images, shown S times.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

import torch
from PIL import Image
from torch import Tensor

from dart_streams import pictures
from dart_streams.policy.rendering import ImageInputs, Renderer
from trainer.data.samples import ReadyGroup, TrainingSample

Item = TypeVar("Item")
BLANK_SIDE = 56


class ModelImage(NamedTuple):
    """An image: (width, height), number of image tokens, model inputs."""

    size: tuple[int, int]
    tokens: int
    inputs: ImageInputs


@dataclass(frozen=True)
class MicroBatch:
    """Input of one forward and backward pass; it has at least one image, so that every rank runs the vision tower.

    ``images`` are model inputs of the distinct images, ``counts_I`` their image tokens, and ``shown_S`` the order in
    which rows show them. ``answer_RL`` is a token's answer within its row (from 1; 0: prompt), ``offset_RL`` its index
    in that answer. Sample b's answer is in row ``row_B`` and starts ``start_B`` columns after the prompt.
    ``corrected_BA`` marks tokens with log-probabilities of the engine. ``versions_BA`` is each token's weight version
    (-1: none). ``places`` has each sample's trajectory and step.
    """

    input_ids_RL: Tensor
    attention_mask_RL: Tensor
    token_types_RL: Tensor
    answer_RL: Tensor
    offset_RL: Tensor
    row_B: Tensor
    start_B: Tensor
    prompt_width: int
    images: ImageInputs
    counts_I: Tensor
    shown_S: Tensor
    answers_BA: Tensor
    mask_BA: Tensor
    rollout_logp_BA: Tensor
    corrected_BA: Tensor
    versions_BA: Tensor
    advantage_B1: Tensor
    temperature_B: Tensor
    places: tuple[tuple[str, int], ...] = ()

    @property
    def shares_prompts(self) -> bool:
        """Whether any row has several answers."""
        return len(self.row_B) > len(self.input_ids_RL)

    def to(self, device: torch.device) -> "MicroBatch":
        """Return a copy on ``device``."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        moved: dict[str, Any] = {name: value.to(device) for name, value in values.items() if isinstance(value, Tensor)}
        return replace(self, **moved, images={name: value.to(device) for name, value in self.images.items()})


class Collator:
    """Collates micro-batches, with ``share_prompts`` one row a prompt; each image is decoded and encoded once."""

    def __init__(self, renderer: Renderer, share_prompts: bool = False) -> None:
        self.renderer = renderer
        self.share_prompts = share_prompts
        self._images: dict[str, ModelImage] = {}

    def pieces(self, groups: Sequence[ReadyGroup], rows: int, tokens: int) -> list[Sequence[TrainingSample]]:
        """Return the samples in micro-batches of at most ``rows`` rows and ``tokens`` tokens (see :func:`pack`)."""
        sizes = {sha256: pictures.size_of(data) for group in groups for sha256, data in group.images.items()}
        samples = [item for group in groups for item in group.samples]

        def prompt_length(item: TrainingSample) -> int:
            seen = (self.renderer.expansion(*sizes[ref.sha256]) for ref in item.images)
            return len(item.prompt) + sum(len(tokens) - 1 for tokens in seen)

        parts = [part for row in self._rows(samples) for part in split_row(row, tokens - prompt_length(row[0]))]
        lengths = [prompt_length(row[0]) + sum(len(item.answer) for item in row) for row in parts]
        return [[item for row in piece for item in row] for piece in pack(parts, lengths, rows, tokens)]

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
        """Return samples as a micro-batch; without samples, one that contributes nothing."""
        encoded = self._encoded(samples, images)
        order = list(encoded)
        items = samples or [TrainingSample(prompt=[self.renderer.pad], answer=[self.renderer.eos])]
        rows = self._rows(items)
        items = [item for row in rows for item in row]
        prompts = [
            self.renderer.expanded(row[0].prompt, [encoded[ref.sha256].size for ref in row[0].images]) for row in rows
        ]
        prompt_RP, prompt_mask_RP = pad_rows(prompts, self.renderer.pad, left=True)
        tokens_RW, tokens_mask_RW = pad_rows(
            [[token for item in row for token in item.answer] for row in rows], self.renderer.pad
        )
        answer_RW, _ = pad_rows([[place for place, item in enumerate(row, 1) for _ in item.answer] for row in rows], 0)
        offset_RW, _ = pad_rows([[offset for item in row for offset in range(len(item.answer))] for row in rows], 0)
        zeros_RP = torch.zeros_like(prompt_RP)
        starts = [start for row in rows for start in accumulate((len(item.answer) for item in row[:-1]), initial=0)]
        answer_BA, answer_mask_BA = pad_rows([item.answer for item in items], self.renderer.pad)
        ids_RL = torch.cat([prompt_RP, tokens_RW], 1)
        logp_BA = torch.zeros(answer_BA.shape)
        versions_BA = torch.full(answer_BA.shape, -1)
        for place, item in enumerate(items):
            logp_BA[place, : len(item.answer)] = torch.tensor(item.logprobs or [0.0] * len(item.answer))
            for segment in item.versions:
                versions_BA[place, segment.start : segment.end] = segment.version
        used_BA = answer_mask_BA.bool() & bool(samples)
        return MicroBatch(
            input_ids_RL=ids_RL,
            attention_mask_RL=torch.cat([prompt_mask_RP, tokens_mask_RW], 1),
            token_types_RL=(ids_RL == self.renderer.image_token).to(torch.int32),
            answer_RL=torch.cat([zeros_RP, answer_RW], 1),
            offset_RL=torch.cat([zeros_RP, offset_RW], 1),
            row_B=torch.tensor([number for number, row in enumerate(rows) for _ in row]),
            start_B=torch.tensor(starts),
            prompt_width=prompt_RP.shape[1],
            images=self._joined(encoded, images),
            counts_I=torch.tensor([image.tokens for image in encoded.values()]),
            shown_S=torch.tensor([order.index(ref.sha256) for row in rows for ref in row[0].images], dtype=torch.long),
            answers_BA=answer_BA,
            mask_BA=used_BA,
            rollout_logp_BA=logp_BA,
            corrected_BA=used_BA & torch.tensor([[item.logprobs is not None] for item in items]),
            versions_BA=versions_BA,
            advantage_B1=torch.tensor([[item.advantage] for item in items]),
            temperature_B=torch.tensor([item.temperature for item in items]),
            places=tuple((item.trajectory_id, item.step) for item in items),
        )

    def _rows(self, samples: Sequence[TrainingSample]) -> list[list[TrainingSample]]:
        """Return the samples of each row."""
        if not self.share_prompts:
            return [[item] for item in samples]
        rows: dict[tuple[object, ...], list[TrainingSample]] = {}
        for item in samples:
            key = (tuple(item.prompt), *(ref.sha256 for ref in item.images))
            rows.setdefault(key, []).append(item)
        return list(rows.values())

    def _encoded(self, samples: Sequence[TrainingSample], images: Mapping[str, bytes]) -> Mapping[str, ModelImage]:
        """Return the images that ``samples`` show, by sha256; images of the previous micro-batch are reused."""
        wanted = dict.fromkeys(ref.sha256 for item in samples for ref in item.images)
        self._images = {sha256: self._images.get(sha256) or self.encode(images[sha256]) for sha256 in wanted}
        if not self._images:
            self._images = {"": self._encode_image(Image.new("RGB", (BLANK_SIDE, BLANK_SIDE)))}
        return self._images

    def _joined(self, encoded: Mapping[str, ModelImage], images: Mapping[str, bytes]) -> ImageInputs:
        """Return the model inputs of all images, concatenated or, if shapes differ, padded by the image processor."""
        each = [image.inputs for image in encoded.values()]
        if len({tuple((name, value.shape[1:]) for name, value in inputs.items()) for inputs in each}) == 1:
            return {name: torch.cat([inputs[name] for inputs in each]) for name in each[0]}
        return self.renderer.pixels([pictures.decode_picture(images[sha256]) for sha256 in encoded])

    def encode(self, data: bytes) -> ModelImage:
        """Return an encoded image as model input."""
        return self._encode_image(pictures.decode_picture(data))

    def _encode_image(self, image: Image.Image) -> ModelImage:
        tokens = self.renderer.expansion(*image.size).count(self.renderer.image_token)
        return ModelImage(image.size, tokens, self.renderer.pixels([image]))


def pack(items: Sequence[Item], lengths: Sequence[int], count: int, tokens: int) -> Iterator[Sequence[Item]]:
    """Yield consecutive runs of at most ``count`` items and, padded, ``tokens`` tokens; a longer item is alone."""
    start, longest = 0, 0
    for end, tall in enumerate(lengths):
        size = end - start
        if size and (size == count or (size + 1) * max(longest, tall) > tokens):
            yield items[start:end]
            start, longest = end, 0
        longest = max(longest, tall)
    if start < len(items):
        yield items[start:]


def split_row(row: Sequence[TrainingSample], tokens: int) -> Iterator[list[TrainingSample]]:
    """Yield the samples of a row in parts of at most ``tokens`` answer tokens; a longer answer is alone."""
    part: list[TrainingSample] = []
    size = 0
    for item in row:
        if part and size + len(item.answer) > tokens:
            yield part
            part, size = [], 0
        part.append(item)
        size += len(item.answer)
    if part:
        yield part


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
