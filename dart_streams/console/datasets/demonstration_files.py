"""Reads demonstrations from a set of `data export`, or from JSON lines that name images in the same folder."""

import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from dart_streams.config.text import text_of
from dart_streams.console.datasets.demonstrations import DemonstrationLine, episode_of_line
from dart_streams.console.datasets.episode_columns import InvalidRow, RecordedEpisode
from dart_streams.console.datasets.episode_rows import episode_of
from dart_streams.errors import UserError

decode_line = msgspec.json.Decoder(DemonstrationLine).decode


class Placed(NamedTuple):
    """An episode and its place in a file."""

    place: str
    episode: RecordedEpisode


def is_lines(path: Path) -> bool:
    """Return whether a file has JSON lines; raise :class:`UserError` if it is neither that nor Parquet."""
    if not path.exists():
        raise UserError(f"no data set {path}: give a Parquet file of `dart-streams data export`, or JSON lines")
    if path.suffix in (".jsonl", ".ndjson"):
        return True
    if path.is_dir() or path.suffix == ".parquet":
        return False
    raise UserError(f"{path}: a data set is a .parquet file, a folder of them, or a .jsonl file")


def episodes_in(path: Path) -> Iterator[Placed]:
    """Yield the episodes of a file in order; raise :class:`UserError` with the place of an invalid one."""
    return episodes_of_lines(path) if is_lines(path) else episodes_of_parquet(path)


def episode_count(path: Path) -> int | None:
    """Return the number of episodes in a file, None for Parquet, which counts rows."""
    if not is_lines(path):
        return None
    with path.open("rb") as file:
        return sum(1 for line in file if line.strip())


def episodes_of_lines(path: Path) -> Iterator[Placed]:
    """Yield the demonstrations of a file of JSON lines."""
    read = functools.partial(image_bytes, path.parent)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not (text := text_of(line, str(path), number).strip()):
                continue
            place = f"{path}:{number}"
            try:
                identity = f"line-{hashlib.sha256(text.encode()).hexdigest()[:32]}"
                yield Placed(place, episode_of_line(decode_line(text), identity, read))
            except (msgspec.DecodeError, InvalidRow) as error:
                raise UserError(f"{place}: {error}") from None


def image_bytes(folder: Path, name: str) -> bytes:
    """Return the bytes of an image; raise :class:`InvalidRow` if it can't be read."""
    try:
        return (folder / name).read_bytes()
    except OSError as error:
        raise InvalidRow(f"image {folder / name}: {error.strerror}") from None


def episodes_of_parquet(path: Path) -> Iterator[Placed]:
    """Yield the episodes of a Parquet set; needs the environment .venv/data."""
    from dart_streams.console.datasets import parquet

    for rows in parquet.episodes_in(path):
        place = f"{path}: trajectory {rows[0]['trajectory_id']}"
        try:
            yield Placed(place, episode_of(rows))
        except InvalidRow as error:
            raise UserError(f"{place}: {error}") from None
