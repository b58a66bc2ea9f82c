"""Reader of torch checkpoints that runs no code from them: tensors only, with a restricted unpickler."""

import pickle
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner, FileSystemReader, filesystem, metadata
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import ReadItem
from torch.serialization import _get_layout

METADATA = ".metadata"
"""torch's index of tensors."""
KNOWN: dict[tuple[str, str], Any] = {
    ("builtins", "getattr"): lambda kind, name: memory_format(kind, name),
    ("pathlib", "PosixPath"): PurePosixPath,
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): _get_layout,
    (filesystem.__name__, "_StorageInfo"): filesystem._StorageInfo,
    **{
        (metadata.__name__, kind.__name__): kind
        for kind in (
            metadata.ChunkStorageMetadata,
            metadata.Metadata,
            metadata.MetadataIndex,
            metadata.StorageMeta,
            metadata.TensorProperties,
            metadata.TensorStorageMetadata,
            metadata._MEM_FORMAT_ENCODING,
        )
    },
}
"""Classes and functions that the index may name, by module and name."""


class ForeignObject(Exception):
    """A checkpoint holds an object that no trainer writes."""


class PlacesUnpickler(pickle.Unpickler):
    """Unpickler of the index; raises :class:`ForeignObject` for anything not in :data:`KNOWN`."""

    def find_class(self, module: str, name: str) -> Any:
        """Return an allowed class or function."""
        if (known := KNOWN.get((module, name))) is not None:
            return known
        if module == "torch" and isinstance(kind := getattr(torch, name, None), torch.dtype):
            return kind
        raise ForeignObject(f"{METADATA} names {module}.{name}, which no trainer writes")


def memory_format(kind: object, name: str) -> Any:
    """Return a memory format by name; Python 3.11 pickles it as an attribute of its class."""
    if kind is not metadata._MEM_FORMAT_ENCODING:
        raise ForeignObject(f"{METADATA} asks for an attribute of {kind!r}")
    return metadata._MEM_FORMAT_ENCODING[name]


class TensorReader(FileSystemReader):
    """torch's folder reader with a restricted index, read here because torch drops the errors of ``read_metadata``."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        with (folder / METADATA).open("rb") as stream:
            self.places = PlacesUnpickler(stream).load()
        if not isinstance(self.places, Metadata):
            raise ForeignObject(f"{METADATA} is {type(self.places).__name__}")

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Return the index."""
        self.places.storage_meta = self.places.storage_meta or StorageMeta()
        self.places.storage_meta.load_id = self.load_id
        return self.places


class TensorPlanner(DefaultLoadPlanner):
    """torch's planner for tensors only; other values would be unpickled."""

    def load_bytes(self, read_item: ReadItem, _: BytesIO) -> None:
        """Refuse a value that is not a tensor."""
        raise ForeignObject(f"{read_item.dest_index.fqn} is not a tensor")
