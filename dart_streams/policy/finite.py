"""Whether weights are numbers: one that is infinite, or not a number, makes every answer of a policy useless."""

import math
from collections.abc import Iterable

from torch import Tensor, aminmax

from dart_streams.errors import UserError


class NotFinite(UserError):
    """Weights that are not finite, which are written nowhere."""

    exit_code = 1


def find_nonfinite(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Return the first of named tensors with a value that is not finite, with that value; empty if there is none."""
    for name, tensor in tensors:
        for value in value_extremes(tensor):
            if not math.isfinite(value):
                return f"{name} has {value} ({str(tensor.dtype).removeprefix('torch.')})"
    return ""


def largest_value(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Return the largest value of named tensors, with its name."""
    found = ((max(map(abs, value_extremes(tensor)), default=0.0), name) for name, tensor in tensors)
    value, name = max(found, default=(0.0, "no tensor"))
    return f"{value:.3g}, in {name}"


def value_extremes(tensor: Tensor) -> tuple[float, ...]:
    """Return the smallest and the largest value of a tensor, both nan if any is; nothing of integers or of none."""
    if not tensor.is_floating_point() or not tensor.numel():
        return ()
    low, high = aminmax(tensor.detach())  # one pass, without a copy
    return float(low), float(high)
