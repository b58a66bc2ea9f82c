"""What a model makes of images, whichever its family: its arguments by name, and features as often as they are shown.

Shapes: I distinct images, shown S times, of N tokens in all; D the language model's width.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dart_streams.policy.rendering import UnsupportedModel

FEATURES = ("pooler_output", "deepstack_features")
"""The fields of a vision tower's output that language models read; the second has an entry a layer."""


def arguments_of(function: Callable[..., Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``function`` takes by name of what is ``offered``."""
    return {name: offered[name] for name in inspect.signature(function).parameters if name in offered}


def encode(policy: Any, images: Mapping[str, Tensor]) -> Any:
    """Return the output of the vision tower for all images; each is encoded once."""
    return policy.get_image_features(**arguments_of(policy.get_image_features, images), return_dict=True)


def repeat_features(encoded: Any, counts_I: Tensor, shown_S: Tensor) -> Any:
    """Return a vision tower's output with each image's features where, and as often as, prompts show it."""
    counts, order = counts_I.tolist(), shown_S.tolist()
    return type(encoded)(**{name: pick_images(value, counts, order) for name, value in feature_fields(encoded).items()})


def pick_images(features: Any, counts: Sequence[int], order: Sequence[int]) -> Any:
    """Return features of images in the given order, in the same form: a tensor, a sequence of tensors, or nested."""
    if not isinstance(features, Tensor) and not isinstance(features[0], Tensor):
        return [pick_images(layer, counts, order) for layer in features]
    rows_ND = rows_of(features)
    if len(rows_ND) != sum(counts):
        raise UnsupportedModel(
            f"the model's vision tower makes {len(rows_ND)} features of images for which its processor writes "
            f"{sum(counts)} image tokens into the prompt"
        )
    of_image = rows_ND.split(list(counts))
    found = [of_image[index] for index in order]
    return torch.cat(found) if isinstance(features, Tensor) else found


def rows_of(features: Tensor | Sequence[Tensor]) -> Tensor:
    """Return all features, (N, D), of images in order."""
    each = [features] if isinstance(features, Tensor) else features
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in each])


def feature_fields(encoded: Any) -> dict[str, Any]:
    """Return the features of a vision tower's output by their names."""
    return {name: value for name in FEATURES if (value := getattr(encoded, name, None)) is not None and len(value)}


def zero_of(encoded: Any) -> Tensor:
    """Return a zero that all of a vision tower's output is part of, so that its parameters have a gradient."""
    total = torch.zeros(())
    for features in feature_fields(encoded).values():
        layers = [features] if isinstance(features, Tensor) or isinstance(features[0], Tensor) else features
        total = sum((0.0 * rows_of(layer).sum() for layer in layers), start=total.to(rows_of(layers[0])))
    return total
