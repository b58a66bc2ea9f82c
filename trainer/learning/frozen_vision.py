"""A frozen vision tower: its features of a screenshot are computed once and kept in memory."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from dart_streams.policy import weights
from dart_streams.policy.rendering import Renderer
from trainer.data.collate import MicroBatch, blank_image
from trainer.learning import vision

CACHE_BYTES = 2 << 30
"""Bound of the kept features in host memory; the least recently used leave first."""


def freeze(policy: Any, renderer: Renderer, published: torch.dtype) -> None:
    """Round the parameters that an image's features depend on to their published type, and freeze them."""
    trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    with torch.enable_grad():
        features = vision.zero_of(vision.encode(policy, renderer.pixels([blank_image()])))
    gradients = torch.autograd.grad(features, trained, allow_unused=True)
    for parameter, gradient in zip(trained, gradients, strict=True):
        if gradient is not None:
            parameter.requires_grad_(False)
            parameter.data.copy_(parameter.to(published))


def digest_frozen(policy: torch.nn.Module) -> str:
    """Return the SHA-256 (hex) of a model's frozen parameters, before it is sharded."""
    frozen = {name: value.detach().cpu() for name, value in policy.named_parameters() if not value.requires_grad}
    return weights.digest_tensors(frozen)


class FeatureCache:
    """Features of images by sha256, least recently used first. ``any_rank`` is the disjunction over all ranks."""

    def __init__(self, any_rank: Callable[[bool], bool], most_bytes: int = CACHE_BYTES) -> None:
        self.any_rank = any_rank
        self.most_bytes = most_bytes
        self.held_bytes = 0
        self.encoded = 0
        """Images that passed the vision tower."""
        self._kept: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._kind: Callable[..., Any] = dict

    def encode(self, policy: Any, batch: MicroBatch) -> Any:
        """Return the vision tower's output for a micro-batch's images, computed for those not kept. Collective."""
        missing = [place for place, sha256 in enumerate(batch.image_ids) if sha256 not in self._kept]
        if self.any_rank(bool(missing)):
            # Every rank runs the tower if one must: its parameters are sharded.
            self._compute(policy, batch, missing or [0])
        for sha256 in batch.image_ids:
            self._kept.move_to_end(sha256)
        parts = [self._kept[sha256] for sha256 in batch.image_ids]
        device = batch.counts_I.device
        joined = {name: join_values([part[name] for part in parts], device) for name in parts[0]}
        while self.held_bytes > self.most_bytes and self._kept:
            self.held_bytes -= count_bytes(self._kept.popitem(last=False)[1])
        return self._kind(**joined)

    def _compute(self, policy: Any, batch: MicroBatch, places: list[int]) -> None:
        """Compute and keep the features of the images at ``places``; of all, if these cannot be taken apart."""
        images = batch.images
        if batch.image_lengths is None:
            places = list(range(len(batch.image_ids)))
        else:
            images = {
                name: torch.cat([part for place, part in enumerate(value.split(list(lengths))) if place in places])
                for (name, value), lengths in zip(images.items(), batch.image_lengths, strict=True)
            }
        with torch.no_grad():
            encoded = vision.encode(policy, images)
        self._kind = type(encoded)
        counts = batch.counts_I[places].tolist()
        for number, place in enumerate(places):
            features = {
                name: pytree.tree_map(Tensor.cpu, vision.pick_images(value, counts, [number]))
                for name, value in vision.feature_fields(encoded).items()
            }
            self.encoded += 1
            self.held_bytes += count_bytes(features) - count_bytes(self._kept.get(batch.image_ids[place], {}))
            self._kept[batch.image_ids[place]] = features


def count_bytes(features: Any) -> int:
    """Return the bytes of features by name."""
    return sum(tensor.nbytes for tensor in pytree.tree_leaves(features))


def join_values(values: list[Any], device: torch.device) -> Any:
    """Return the features of several images as one, in the form of :func:`trainer.learning.vision.pick_images`."""
    if isinstance(values[0], Tensor):
        return torch.cat([value.to(device) for value in values])
    if isinstance(values[0][0], Tensor):
        return [part.to(device) for value in values for part in value]
    return [join_values(list(layer), device) for layer in zip(*values, strict=True)]
