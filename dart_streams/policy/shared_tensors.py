"""Tensors in anonymous shared memory, which other processes of the same user map by their places.

The memory has no name: it ends with its tensors and with the process, even a killed one. A container's limit of
``/dev/shm`` does not count.
"""

import math
import mmap
import os
import weakref
from collections.abc import Mapping
from typing import NamedTuple, Self

import torch
from torch import Tensor

ALIGNMENT = 64


class TensorPlace(NamedTuple):
    """A tensor's bytes in ``file``, from ``offset`` on."""

    file: str
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]


class Block(mmap.mmap):
    """Shared memory of ``size`` bytes, which lives as long as the tensors in it; ``file`` opens it elsewhere."""

    file: str
    address: int

    @classmethod
    def create(cls, size: int) -> Self:
        """Return new memory; raise OSError or MemoryError without room."""
        descriptor = os.memfd_create("weights", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, size)
            block = cls(descriptor, size)
        except BaseException:
            os.close(descriptor)
            raise
        weakref.finalize(block, os.close, descriptor)
        block.file = f"/proc/{os.getpid()}/fd/{descriptor}"
        block.address = torch.frombuffer(block, dtype=torch.uint8, count=1).data_ptr()
        return block


class SharedTensors:
    """Copies tensors into shared memory, and finds their places."""

    def __init__(self) -> None:
        self._blocks: weakref.WeakSet[Block] = weakref.WeakSet()

    def copy(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return copies in one new block, on the CPU."""
        offsets, size = {}, 0
        for name, tensor in tensors.items():
            offsets[name] = size
            size += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
        block = Block.create(max(size, ALIGNMENT))
        self._blocks.add(block)
        places = {name: TensorPlace("", offsets[name], it.dtype, tuple(it.shape)) for name, it in tensors.items()}
        copies = {name: view_place(block, place) for name, place in places.items()}
        for name, tensor in tensors.items():
            copies[name].copy_(tensor)
        return copies

    def places(self, tensors: Mapping[str, Tensor]) -> dict[str, TensorPlace]:
        """Return the places of tensors that :meth:`copy` made; raise KeyError for any other."""
        blocks = list(self._blocks)
        found = {}
        for name, tensor in tensors.items():
            address = tensor.data_ptr()
            block = next((it for it in blocks if it.address <= address < it.address + len(it)), None)
            if tensor.numel() and (block is None or not tensor.is_contiguous()):
                raise KeyError(f"{name} is not in shared memory")
            file, offset = (block.file, address - block.address) if block is not None else ("", 0)
            found[name] = TensorPlace(file, offset, tensor.dtype, tuple(tensor.shape))
        return found


def map_tensors(places: Mapping[str, TensorPlace]) -> dict[str, Tensor]:
    """Return the tensors at ``places`` without copying them; another process may own the memory."""
    blocks = {file: map_file(file) for file in {place.file for place in places.values()} if file}
    return {name: view_place(blocks.get(place.file), place) for name, place in places.items()}


def map_file(file: str) -> mmap.mmap:
    """Return a file's contents; what is written to them stays in this process."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
    finally:
        os.close(descriptor)


def view_place(block: mmap.mmap | None, place: TensorPlace) -> Tensor:
    """Return the tensor at a place of mapped memory."""
    count = math.prod(place.shape)
    if block is None or not count:
        return torch.empty(place.shape, dtype=place.dtype)
    return torch.frombuffer(block, dtype=place.dtype, count=count, offset=place.offset).view(place.shape)
