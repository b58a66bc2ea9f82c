"""Vision inputs and features of any model family; I distinct images, shown S times, N tokens, D width."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dart_streams.policy.rendering import UnsupportedModel

FEATURES = ("pooler_output", "deepstack_features")
"""Fields of a vision tower's output that language models read; the second has an entry a layer."""


def arguments_of(function: Callable[..., Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``offered`` values that ``function`` takes by name."""
    return {name: offered[name] for name in inspect.signature(function).parameters if name in offered}


def encode(policy: Any, images: Mapping[str, Tensor]) -> Any:
    """Return the vision tower's output for all images."""
    return policy.get_image_features(**arguments_of(policy.get_image_features, images), return_dict=True)


def repeat_features(encoded: Any, counts_I: Tensor, shown_S: Tensor) -> Any:
    """Return a vision tower's output with each image's features as often as prompts show it."""
    counts, order = counts_I.tolist(), shown_S.tolist()
    return type(encoded)(**{name: pick_images(value, counts, order) for name, value in feature_fields(encoded).items()})


def pick_images(features: Any, counts: Sequence[int], order: Sequence[int]) -> Any:
    """Return the features of images in the given order, in the same form (tensor, sequence or nested)."""
    if not isinstance(features, Tensor) and not isinstance(features[0], Tensor):
        return [pick_images(layer, counts, order) for layer in features]
    rows_ND = rows_of(features)
    if len(rows_ND) != sum(counts):
        raise UnsupportedModel(
            f"the model's vision tower makes {len(rows_ND)} features for {sum(counts)} image tokens of its processor"
        )
    of_image = rows_ND.split(list(counts))
    picked = [of_image[index] for index in order]
    return torch.cat(picked) if isinstance(features, Tensor) else picked


def rows_of(features: Tensor | Sequence[Tensor]) -> Tensor:
    """Return all features in image order, (N, D)."""
    each = [features] if isinstance(features, Tensor) else features
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in each])


def feature_fields(encoded: Any) -> dict[str, Any]:
    """Return the features of a vision tower's output by name."""
    return {name: value for name in FEATURES if (value := getattr(encoded, name, None)) is not None and len(value)}


def zero_of(encoded: Any) -> Tensor:
    """Return a zero that depends on a vision tower's whole output, so that its parameters get gradients."""
    total = torch.zeros(())
    for features in feature_fields(encoded).values():
        layers = [features] if isinstance(features, Tensor) or isinstance(features[0], Tensor) else features
        total = sum((0.0 * rows_of(layer).sum() for layer in layers), start=total.to(rows_of(layers[0])))
    return total
