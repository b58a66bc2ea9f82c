"""Checks that weights are finite: an infinite or NaN weight makes every answer useless."""

import math
from collections.abc import Iterable

from torch import Tensor, aminmax

from dart_streams.errors import UserError


class NotFinite(UserError):
    """Weights with a value that is not finite; they are never written."""

    exit_code = 1


def find_nonfinite(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Return the first tensor with a value that is not finite, and the value; empty if all are finite."""
    for name, tensor in tensors:
        for value in value_extremes(tensor):
            if not math.isfinite(value):
                return f"{name} has {value} ({str(tensor.dtype).removeprefix('torch.')})"
    return ""


def largest_value(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Return the largest magnitude of named tensors, with its name."""
    magnitudes = ((max(map(abs, value_extremes(tensor)), default=0.0), name) for name, tensor in tensors)
    value, name = max(magnitudes, default=(0.0, "no tensor"))
    return f"{value:.3g}, in {name}"


def value_extremes(tensor: Tensor) -> tuple[float, ...]:
    """Return a tensor's minimum and maximum, nan if it has one; empty for integers and empty tensors."""
    if not tensor.is_floating_point() or not tensor.numel():
        return ()
    low, high = aminmax(tensor.detach())  # one pass, without a copy
    return float(low), float(high)
