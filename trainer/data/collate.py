"""Samples to tensors: micro-batches with prompts padded on the left and answers on the right.

So every answer of a micro-batch begins at the same column, and only those columns pass the language head. Shapes: B
sequences, L tokens (P of the prompt, A of the answer), N patches of C pixels of the I distinct images, shown S times.
"""

import io
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields

import torch
from PIL import Image
from torch import Tensor

from dart_streams.policy.rendering import Renderer, expand
from trainer.data.samples import ReadyGroup, TrainingSample

BLANK_SIDE = 56
NO_VERSION = -1

Patches = tuple[Tensor, Tensor]
"""One image: its patches (N, pixels) and its grid (1, 3)."""


@dataclass(frozen=True)
class MicroBatch:
    """What one forward and backward pass takes.

    There is always at least one image, blank if need be, so that every rank runs the vision tower. ``shown_S``
    indexes the images in the order in which the prompts show them. ``corrected`` is true where the engine's
    log-probabilities count; ``versions`` is the weight version that made each token, -1 if none did.
    """

    input_ids_BL: Tensor
    attention_mask_BL: Tensor
    token_types_BL: Tensor
    patches_NC: Tensor
    grids_I3: Tensor
    shown_S: Tensor
    answers_BA: Tensor
    mask_BA: Tensor
    rollout_logp_BA: Tensor
    corrected_BA: Tensor
    versions_BA: Tensor
    advantage_B1: Tensor
    temperature_B: Tensor

    def to(self, device: torch.device) -> "MicroBatch":
        """Return the same on ``device``."""
        return MicroBatch(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})


class Collator:
    """Makes micro-batches; an image that several samples show is decoded and passed to the model once."""

    def __init__(self, renderer: Renderer) -> None:
        self.renderer = renderer
        self.image_token: int = renderer.config.image_token_id
        self.merge = renderer.image_processor.merge_size**2
        self._patches: dict[str, Patches] = {}

    def pieces(self, groups: Sequence[ReadyGroup], sequences: int, tokens: int) -> list[Sequence[TrainingSample]]:
        """Return the samples of all groups, packed by :func:`pack`."""
        seen = {sha256: self._image_tokens(data) for group in groups for sha256, data in group.images.items()}
        samples = [item for group in groups for item in group.samples]
        lengths = [
            len(item.prompt) + len(item.answer) + sum(seen[ref.sha256] - 1 for ref in item.images) for item in samples
        ]
        return list(pack(samples, lengths, sequences, tokens))

    def batches(
        self, groups: Sequence[ReadyGroup], pieces: Sequence[Sequence[TrainingSample]], count: int
    ) -> Iterator[MicroBatch]:
        """Yield ``pieces`` of the samples of ``groups`` as ``count`` micro-batches, empty ones at the end if need be.

        Each is made in the background while the one before is used.
        """
        images = {sha256: data for group in groups for sha256, data in group.images.items()}
        made: deque[Future[MicroBatch]] = deque()
        with ThreadPoolExecutor(1, thread_name_prefix="collate") as ahead:
            for samples in [*pieces, *[()] * (count - len(pieces))]:
                made.append(ahead.submit(self.collate, samples, images))
                if len(made) > 1:
                    yield made.popleft().result()
            while made:
                yield made.popleft().result()

    def collate(self, samples: Sequence[TrainingSample], images: Mapping[str, bytes]) -> MicroBatch:
        """Return samples as one micro-batch; without samples, one that contributes nothing."""
        self._keep_patches(samples, images)
        order = list(self._patches)
        pads = {sha256: int(grid.prod()) // self.merge for sha256, (_, grid) in self._patches.items()}
        items = samples or [TrainingSample(prompt=[self.renderer.pad], answer=[self.renderer.eos])]
        prompts = [expand(item.prompt, self.image_token, [pads[ref.sha256] for ref in item.images]) for item in items]
        prompt_BP, prompt_mask_BP = padded(prompts, self.renderer.pad, left=True)
        answer_BA, answer_mask_BA = padded([item.answer for item in items], self.renderer.pad)
        ids_BL = torch.cat([prompt_BP, answer_BA], 1)
        logp_BA = torch.zeros(answer_BA.shape)
        versions_BA = torch.full(answer_BA.shape, NO_VERSION)
        for row, item in enumerate(items):
            logp_BA[row, : len(item.answer)] = torch.tensor(item.logprobs or [0.0] * len(item.answer))
            for segment in item.versions:
                versions_BA[row, segment.start : segment.end] = segment.version
        used_BA = answer_mask_BA.bool() & bool(samples)
        return MicroBatch(
            input_ids_BL=ids_BL,
            attention_mask_BL=torch.cat([prompt_mask_BP, answer_mask_BA], 1),
            token_types_BL=(ids_BL == self.image_token).to(torch.int32),
            patches_NC=torch.cat([patches for patches, _ in self._patches.values()]),
            grids_I3=torch.cat([grid for _, grid in self._patches.values()]),
            shown_S=torch.tensor([order.index(ref.sha256) for item in items for ref in item.images], dtype=torch.long),
            answers_BA=answer_BA,
            mask_BA=used_BA,
            rollout_logp_BA=logp_BA,
            corrected_BA=used_BA & torch.tensor([[item.logprobs is not None] for item in items]),
            versions_BA=versions_BA,
            advantage_B1=torch.tensor([[item.advantage] for item in items]),
            temperature_B=torch.tensor([item.temperature for item in items]),
        )

    def _keep_patches(self, samples: Sequence[TrainingSample], images: Mapping[str, bytes]) -> None:
        """Have the patches of just the images that ``samples`` show; neighbouring micro-batches share many."""
        wanted = dict.fromkeys(ref.sha256 for item in samples for ref in item.images)
        self._patches = {sha256: self._patches.get(sha256) or self._cut(images[sha256]) for sha256 in wanted}
        if not self._patches:
            blank = Image.new("RGB", (BLANK_SIDE, BLANK_SIDE))
            self._patches = {"": self.renderer.pixels([blank])}

    def _image_tokens(self, data: bytes) -> int:
        """Return the number of tokens of an image in a prompt; only its header is read."""
        with Image.open(io.BytesIO(data)) as image:
            count = self.renderer.image_processor.get_number_of_image_patches(image.height, image.width, {})
        return int(count) // self.merge

    def _cut(self, data: bytes) -> Patches:
        with Image.open(io.BytesIO(data)) as image:
            return self.renderer.pixels([image.convert("RGB")])


def pack(
    samples: Sequence[TrainingSample], lengths: Sequence[int], sequences: int, tokens: int
) -> Iterator[Sequence[TrainingSample]]:
    """Yield runs of ``samples``, in order: neighbours have like lengths and share screens.

    A run has at most ``sequences`` of them, and with padding (as many times its longest) at most ``tokens`` tokens; a
    sample longer than that is alone.
    """
    start, longest = 0, 0
    for end, tall in enumerate(lengths):
        size = end - start
        if size and (size == sequences or (size + 1) * max(longest, tall) > tokens):
            yield samples[start:end]
            start, longest = end, 0
        longest = max(longest, tall)
    if start < len(samples):
        yield samples[start:]


def padded(rows: Sequence[Sequence[int]], pad: int, left: bool = False) -> tuple[Tensor, Tensor]:
    """Return token rows as one tensor (B, longest) and its mask, padded on one side."""
    width = max(map(len, rows))
    ids_BL = torch.full((len(rows), width), pad, dtype=torch.long)
    mask_BL = torch.zeros_like(ids_BL)
    for index, row in enumerate(rows):
        place = slice(width - len(row), width) if left else slice(len(row))
        ids_BL[index, place] = torch.tensor(row, dtype=torch.long)
        mask_BL[index, place] = 1
    return ids_BL, mask_BL
