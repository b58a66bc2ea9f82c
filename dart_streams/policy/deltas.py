"""What changed between two states of a model's weights, as tensors, and back: compact, and exact to the bit.

After a step of a small learning rate most values in half precision are the same to the bit. A delta has, of each tensor
that changed, either the places and the new values of the elements that did, or all of it where that is smaller. Places
are coded as the numbers of unchanged elements between them, one or two bytes each: a gap too large for that is a run of
the largest code, each of which stands for as many elements, and the rest.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

GAPS, VALUES, WHOLE = "gaps", "values", "whole"
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integers that hold the bits of an element, by its bytes: NaN and negative zero are values as any."""
CODES: dict[int, Any] = {1: np.uint8, 2: np.uint16}
STORED = {1: torch.uint8, 2: torch.int16}
"""How codes lie in the file, by their bytes; the wider are read as unsigned."""


class Unrelated(Exception):
    """Two states have other names, shapes or types: nothing less than the whole will do."""


class TornDelta(Exception):
    """A delta does not fit the state it is applied to."""


class Delta(NamedTuple):
    """``tensors`` by name, for a file; ``changed`` of ``elements`` values are others than before."""

    tensors: dict[str, Tensor]
    changed: int
    elements: int


def diff_weights(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> Delta:
    """Return what makes ``after`` of ``before``; raise :class:`Unrelated` if they are not of one model and dtype."""
    if before.keys() != after.keys():
        raise Unrelated(f"other tensors: {sorted(before.keys() ^ after.keys())[:3]}")
    tensors: dict[str, Tensor] = {}
    changed = elements = 0
    for name, new in after.items():
        old = before[name]
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            raise Unrelated(f"{name} was {old.dtype} {list(old.shape)} and is {new.dtype} {list(new.shape)}")
        differs_N = element_bits(old) != element_bits(new)
        count = int(differs_N.sum())
        changed, elements = changed + count, elements + new.numel()
        if count:
            tensors |= {f"{name}:{part}": value for part, value in encode_tensor(new, differs_N, count)}
    return Delta(tensors, changed, elements)


def encode_tensor(new: Tensor, differs_N: Tensor, count: int) -> Iterator[tuple[str, Tensor]]:
    """Yield the parts of a tensor of which ``count`` elements differ: the whole, or gaps and values."""
    values_N = new.detach().reshape(-1)
    if count * (1 + new.element_size()) < new.nbytes:
        gaps_K = encode_gaps(differs_N.nonzero()[:, 0].numpy())
        if gaps_K.nbytes + count * new.element_size() < new.nbytes:
            yield GAPS, gaps_K
            yield VALUES, values_N[differs_N]
            return
    yield WHOLE, new.detach().contiguous()


def encode_gaps(places_K: np.ndarray[Any, Any]) -> Tensor:
    """Return the codes of increasing places, of the width that takes fewer bytes."""
    gap_K = np.diff(places_K, prepend=-1) - 1
    found = []
    for width, kind in CODES.items():
        most = np.iinfo(kind).max
        runs_K = gap_K // most
        code = np.full(len(gap_K) + int(runs_K.sum()), most, kind)
        code[np.cumsum(runs_K + 1) - 1] = gap_K % most
        found.append(torch.from_numpy(code if width == 1 else code.view(np.int16)))
    return min(found, key=lambda code: code.nbytes)


def decode_gaps(codes: Tensor) -> np.ndarray[Any, Any]:
    """Return the places that gaps were coded from."""
    width = codes.element_size()
    if STORED.get(width) != codes.dtype:
        raise TornDelta(f"gaps of {codes.dtype}")
    code = codes.numpy().view(CODES[width])
    ends_K = np.flatnonzero(code != np.iinfo(CODES[width]).max)
    found: np.ndarray[Any, Any] = np.cumsum(code, dtype=np.int64)[ends_K] + np.arange(len(ends_K))
    return found


def apply(state: Mapping[str, Tensor], delta: Mapping[str, Tensor]) -> None:
    """Change ``state`` in place; raise :class:`TornDelta` if the delta does not fit, with ``state`` then half changed.

    A delta that fits may still be another one: only the digest of the whole shows that.
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
