"""Writes and reads rows of episodes as Parquet by row groups; needs pyarrow and datasets, which .venv/data has."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Features, List, Value
from datasets import Image as ImageFeature
from msgspec import inspect

from dart_data.episode_columns import ROWS, ImageCell, Layout
from dart_streams.errors import UserError

GROUP_ROWS = 1000
GROUP_BYTES = 32 << 20
"""Most rows of a row group, and bytes of its images."""
READ_ROWS = 16
LAYOUT = b"dart_streams.layout"


class ParquetSet:
    """Context manager that writes a data set; the file gets its name when it is complete."""

    def __init__(self, path: Path, layout: Layout) -> None:
        self.path = path
        self.part = path.with_name(path.name + ".part")
        schema = features_of(layout).arrow_schema
        self.schema = schema.with_metadata({**(schema.metadata or {}), LAYOUT: layout.encode()})
        self.rows: list[dict[str, Any]] = []
        self.bytes = 0

    def __enter__(self) -> Self:
        try:
            # A dictionary saves nothing: images do not repeat.
            self._file = pq.ParquetWriter(self.part, self.schema, compression="zstd", use_dictionary=False)
        except OSError as error:
            raise UserError(f"{self.part} can't be written: {error}") from None
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._write_group()
            self._file.close()
            if kind is None:
                self.part.replace(self.path)
        finally:
            self.part.unlink(missing_ok=True)

    def write(self, rows: Iterable[dict[str, Any]]) -> None:
        """Add rows, and write full row groups."""
        for row in rows:
            self.rows.append(row)
            self.bytes += sum(len(image["bytes"]) for image in row["images"])
            if len(self.rows) >= GROUP_ROWS or self.bytes >= GROUP_BYTES:
                self._write_group()

    def _write_group(self) -> None:
        if self.rows:
            table = pa.Table.from_pylist(self.rows, schema=self.schema)
            try:
                self._file.write_table(table)
            except OSError as error:
                raise UserError(f"{self.part} can't be written: {error}") from None
        self.rows, self.bytes = [], 0


def features_of(layout: Layout) -> Features:
    """Return the columns of a layout as features of ``datasets``."""
    return Features({name: kind for struct in ROWS[layout] for name, kind in struct_features(struct).items()})


def struct_features(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the fields of a struct as features."""
    described = inspect.type_info(struct)
    assert isinstance(described, inspect.StructType)
    return {field.name: feature_of(field.type) for field in described.fields}


def feature_of(kind: inspect.Type) -> Any:
    """Return the feature of a field's type; a nullable type has the feature of its other type."""
    match kind:
        case inspect.UnionType():
            [only] = [other for other in kind.types if not isinstance(other, inspect.NoneType)]
            return feature_of(only)
        case inspect.ListType():
            return List(feature_of(kind.item_type))
        case inspect.StructType():
            return ImageFeature() if kind.cls is ImageCell else struct_features(kind.cls)
        case inspect.IntType():
            return Value("int64")
        case inspect.FloatType():
            return Value("float64")
        case inspect.BoolType():
            return Value("bool")
        case inspect.StrType() | inspect.LiteralType():
            return Value("string")
    raise TypeError(f"no feature for {kind}")


def episodes_in(path: Path) -> Iterator[list[Mapping[str, Any]]]:
    """Yield the rows of each episode, which are neighbors; raise UserError for files of another format or columns."""
    for _, rows in itertools.groupby(rows_in(path), key=lambda row: row["trajectory_id"]):
        yield list(rows)


def rows_in(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a set, or of every Parquet file in a folder by name."""
    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    if not files:
        raise UserError(f"{path} has no Parquet file")
    for name in files:
        try:
            with pq.ParquetFile(name, pre_buffer=False) as file:
                if missing := {"trajectory_id", "images"} - set(file.schema_arrow.names):
                    raise UserError(
                        f"{name} lacks the column {min(missing)}: it is no set of `dart-streams data export`. "
                        "Write what you have as JSON lines"
                    )
                # One row group at a time, or the library prefetches the whole file.
                for group in range(file.num_row_groups):
                    for batch in file.iter_batches(READ_ROWS, row_groups=[group]):
                        yield from batch.to_pylist()
        except FileNotFoundError:
            raise UserError(f"no data set {name}") from None
        except (pa.ArrowInvalid, OSError) as error:
            raise UserError(f"{name} is not a Parquet file, or is damaged: {error}") from None
