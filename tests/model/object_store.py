"""A store of objects in memory, as S3 is: buckets that must be there, no folders, no rename; at times it is away."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

BUCKET = "bucket"


class EndpointConnectionError(Exception):
    """As botocore's, which is no OSError."""


class ObjectStore(MemoryFileSystem):
    """Keeps what it has done; while ``away`` has errors, each call takes one of them."""

    protocol = ("objects", "s3")
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    done: ClassVar[list[str]] = []
    away: ClassVar[list[Exception]] = []

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.removeprefix("objects://"))  # type: ignore[no-any-return]

    def _answer(self, what: str, path: str) -> None:
        if self.away:
            raise self.away.pop(0)
        if self._strip_protocol(path).strip("/").partition("/")[0] != BUCKET:
            raise FileNotFoundError("The specified bucket does not exist")
        self.done.append(f"{what} {Path(path).name}")

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        self.done.append(f"make the bucket of {path}")

    def pipe_file(self, path: str, *args: Any, **kwargs: Any) -> None:
        self._answer("put", path)
        super().pipe_file(path, *args, **kwargs)

    def put_file(self, lpath: str, rpath: str, *args: Any, **kwargs: Any) -> None:
        self._answer("put", rpath)
        super().put_file(lpath, rpath, *args, **kwargs)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        self._answer("copy to", path2)
        super().cp_file(path1, path2, **kwargs)

    def get_file(self, rpath: str, lpath: str, **kwargs: Any) -> None:
        self._answer("get", rpath)
        super().get_file(rpath, lpath, **kwargs)

    def open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        if mode == "rb":
            self._answer("read", path)
        return super().open(path, mode, **kwargs)

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        self._answer("list", path)
        return super().ls(path, detail, **kwargs)


@contextmanager
def registered() -> Iterator[type[ObjectStore]]:
    """Have fsspec know the store as ``objects://``, empty."""
    fsspec.register_implementation("objects", ObjectStore, clobber=True)
    ObjectStore.store.clear()
    ObjectStore.done.clear()
    ObjectStore.away.clear()
    yield ObjectStore
