"""Compact, bit-exact differences between two states of a model's weights, as tensors.

After a step with a small learning rate most half-precision values are unchanged. A delta has, for each changed tensor,
positions and new values of the changed elements, or the whole tensor if that is smaller. Positions are coded as gaps of
one or two bytes; a larger gap is a run of the maximum code followed by the rest.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

GAPS, VALUES, WHOLE = "gaps", "values", "whole"
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer types with an element's bits, by its bytes; NaN and negative zero are ordinary values."""
CODES: dict[torch.dtype, Any] = {torch.uint8: np.uint8, torch.int16: np.uint16}
"""Types of codes in the file, and how they are read."""


class TornDelta(Exception):
    """A delta that does not fit its base state."""


class Delta(NamedTuple):
    """``tensors`` by name, for a file; ``changed`` of ``elements`` values differ."""

    tensors: dict[str, Tensor]
    changed: int
    elements: int


def diff_weights(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> Delta | None:
    """Return the delta from ``before`` to ``after``; None if names, shapes or types differ."""
    if before.keys() != after.keys():
        return None
    tensors: dict[str, Tensor] = {}
    changed = elements = 0
    for name, new in after.items():
        old = before[name]
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            return None
        differs_N = element_bits(old) != element_bits(new)
        count = int(differs_N.sum())
        changed, elements = changed + count, elements + new.numel()
        if count:
            tensors |= {f"{name}:{part}": value for part, value in encode_tensor(new, differs_N, count)}
    return Delta(tensors, changed, elements)


def encode_tensor(new: Tensor, differs_N: Tensor, count: int) -> Iterator[tuple[str, Tensor]]:
    """Yield the parts of a tensor with ``count`` changed elements: the whole, or gaps and values."""
    values_N = new.detach().reshape(-1)
    if count * (1 + new.element_size()) < new.nbytes:
        gaps_K = encode_gaps(differs_N.nonzero()[:, 0].numpy())
        if gaps_K.nbytes + count * new.element_size() < new.nbytes:
            yield GAPS, gaps_K
            yield VALUES, values_N[differs_N]
            return
    yield WHOLE, new.detach().contiguous()


def encode_gaps(places_K: np.ndarray[Any, Any]) -> Tensor:
    """Return the codes of increasing positions, in the smaller of the two widths."""
    gap_K = np.diff(places_K, prepend=-1) - 1
    encodings = []
    for stored, kind in CODES.items():
        most = np.iinfo(kind).max
        runs_K = gap_K // most
        code = np.full(len(gap_K) + int(runs_K.sum()), most, kind)
        code[np.cumsum(runs_K + 1) - 1] = gap_K % most
        encodings.append(torch.from_numpy(code).view(stored))
    return min(encodings, key=lambda code: code.nbytes)


def decode_gaps(codes: Tensor) -> np.ndarray[Any, Any]:
    """Return the positions of coded gaps."""
    if codes.dtype not in CODES:
        raise TornDelta(f"gaps of {codes.dtype}")
    code = codes.numpy().view(CODES[codes.dtype])
    ends_K = np.flatnonzero(code != np.iinfo(code.dtype).max)
    position_K: np.ndarray[Any, Any] = np.cumsum(code, dtype=np.int64)[ends_K] + np.arange(len(ends_K))
    return position_K


def apply(state: Mapping[str, Tensor], delta: Mapping[str, Tensor]) -> None:
    """Change ``state`` in place; raise :class:`TornDelta`, with ``state`` half changed, if the delta does not fit.

    A delta that fits may still be the wrong one, which only the digest of the whole shows.
    """
    for key, tensor in delta.items():
        name, _, part = key.rpartition(":")
        target = state.get(name)
        if target is None or part not in (GAPS, VALUES, WHOLE) or (part != GAPS and tensor.dtype != target.dtype):
            raise TornDelta(f"{key} ({tensor.dtype}) is of no tensor that there is")
        if part == VALUES and f"{name}:{GAPS}" not in delta:
            raise TornDelta(f"{key} has no places")
        if part == WHOLE:
            if tensor.shape != target.shape:
                raise TornDelta(f"{key} is {list(tensor.shape)}, not {list(target.shape)}")
            target.copy_(tensor)
        elif part == GAPS:
            place_K, values_K = decode_gaps(tensor), delta.get(f"{name}:{VALUES}")
            if values_K is None or values_K.shape != place_K.shape or len(place_K) == 0:
                raise TornDelta(f"{key} and its values differ in number")
            if place_K[-1] >= target.numel():
                raise TornDelta(f"{key} reaches beyond the tensor")
            target.view(-1)[torch.from_numpy(place_K)] = values_K


def element_bits(tensor: Tensor) -> Tensor:
    """Return the bits of a tensor's elements as integers, (N,)."""
    return tensor.detach().contiguous().reshape(-1).view(BITS[tensor.element_size()])
