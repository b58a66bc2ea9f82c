"""Reads torch's checkpoints without running code that is in them: tensors only, and the one pickled file restricted."""

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
"""torch's name of the file that says which tensor is where."""
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
"""What the file of places is made of, by module and name; nothing else is called or made."""


class ForeignObject(Exception):
    """A checkpoint has something that no trainer writes into one."""


class PlacesUnpickler(pickle.Unpickler):
    """Reads the file of places; raises :class:`ForeignObject` for any other class or function than it is made of."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class or function of the file of places."""
        if (known := KNOWN.get((module, name))) is not None:
            return known
        if module == "torch" and isinstance(kind := getattr(torch, name, None), torch.dtype):
            return kind
        raise ForeignObject(f"{METADATA} names {module}.{name}, which no checkpoint of a trainer has")


def memory_format(kind: object, name: str) -> Any:
    """Return a tensor's memory format by its name, which Python 3.11 pickles as an attribute of its class."""
    if kind is not metadata._MEM_FORMAT_ENCODING:
        raise ForeignObject(f"{METADATA} asks for an attribute of {kind!r}")
    return metadata._MEM_FORMAT_ENCODING[name]


class TensorReader(FileSystemReader):
    """torch's reader of a folder, which unpickles nothing but places.

    Raises :class:`ForeignObject` if their file has anything else. It is read here, because torch drops the error.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        with (folder / METADATA).open("rb") as stream:
            self.places = PlacesUnpickler(stream).load()
        if not isinstance(self.places, Metadata):
            raise ForeignObject(f"{METADATA} is {type(self.places).__name__}")

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Return which tensor is where."""
        self.places.storage_meta = self.places.storage_meta or StorageMeta()
        self.places.storage_meta.load_id = self.load_id
        return self.places


class TensorPlanner(DefaultLoadPlanner):
    """torch's planner for what consists of tensors alone: other values would be unpickled."""

    def load_bytes(self, read_item: ReadItem, _: BytesIO) -> None:
        """Refuse a value that is no tensor."""
        raise ForeignObject(f"{read_item.dest_index.fqn} is no tensor")
