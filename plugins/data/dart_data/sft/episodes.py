"""Episodes to imitate, in a folder that all ranks read: a file of observations, and the screenshots. Without torch."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Self

import msgspec

from dart_streams.store import MissingBlob
from topics.observations import Observation
from topics.values import BlobRef

EPISODES = "episodes.jsonl"
INDEX = "index.json"
IMAGES = "images"


class EpisodeEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An episode of ``steps`` answers at bytes of the file; ``action_tokens`` are those of each answer's action."""

    trajectory_id: str
    task_id: str
    steps: int
    start: int
    length: int
    action_tokens: list[int]


class PreparedIndex(msgspec.Struct, frozen=True, kw_only=True):
    """Episodes in order, and the SHA-256 (hex) of their observations, which name their screenshots' digests."""

    sha256: str
    episodes: list[EpisodeEntry]


class EpisodeWriter:
    """Context manager that writes episodes to a folder; the index appears at its end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries: dict[str, EpisodeEntry] = {}
        self.state = hashlib.sha256()
        self.offset = 0

    def __enter__(self) -> Self:
        (self.folder / IMAGES).mkdir(parents=True, exist_ok=True)
        self.file = (self.folder / EPISODES).open("wb")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.file.close()
        if kind is None:
            index = PreparedIndex(sha256=self.state.hexdigest(), episodes=list(self.entries.values()))
            (self.folder / INDEX).write_bytes(msgspec.json.encode(index))

    def add(
        self, observations: Sequence[Observation], images: Mapping[str, bytes], action_tokens: Sequence[int]
    ) -> None:
        """Append an episode whose trajectory id is new."""
        line = msgspec.json.encode(observations) + b"\n"
        for sha256, data in images.items():
            if not (file := self.folder / IMAGES / sha256).exists():
                file.write_bytes(data)
        self.file.write(line)
        self.state.update(line)
        first = observations[0]
        self.entries[first.trajectory_id] = EpisodeEntry(
            trajectory_id=first.trajectory_id,
            task_id=first.order.task_id,
            steps=len(observations) - 1,
            start=self.offset,
            length=len(line),
            action_tokens=list(action_tokens),
        )
        self.offset += len(line)


class EpisodeFolder:
    """Reads steps and screenshots of a folder as :class:`SyncStore` reads those of a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        index = msgspec.json.decode((folder / INDEX).read_bytes(), type=PreparedIndex)
        self.sha256 = index.sha256
        self.episodes = {entry.trajectory_id: entry for entry in index.episodes}

    def steps_many(self, ids: Sequence[str]) -> dict[str, list[Observation]]:
        """Return the observations of episodes, in order."""
        found: dict[str, list[Observation]] = {}
        with (self.folder / EPISODES).open("rb") as file:
            for identity in ids:
                entry = self.episodes[identity]
                file.seek(entry.start)
                found[identity] = msgspec.json.decode(file.read(entry.length), type=list[Observation])
        return found

    def get_blobs(self, refs: Iterable[BlobRef]) -> dict[str, bytes]:
        """Return screenshots by sha256; raise :class:`MissingBlob` if one is missing."""
        blobs: dict[str, bytes] = {}
        for ref in refs:
            try:
                blobs[ref.sha256] = (self.folder / IMAGES / ref.sha256).read_bytes()
            except OSError as error:
                raise MissingBlob(ref, f"{self.folder / IMAGES}: {error.strerror}") from None
        return blobs
