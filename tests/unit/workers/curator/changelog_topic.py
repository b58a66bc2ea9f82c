"""A changelog of one partition in memory, with what Kafka promises of it, and the tables of several curators on it."""

from types import SimpleNamespace
from typing import Any

from workers.curator.journal_writer import Changelog

NAME = "curator-agent-changelog"


class ChangelogTopic:
    """The records by offset. Compaction removes those with a later one of the same key, and leaves holes."""

    def __init__(self) -> None:
        self.records: dict[int, tuple[bytes, bytes | None]] = {}
        self.end = 0

    def append(self, key: bytes, value: bytes | None) -> int:
        self.records[self.end] = (key, value)
        self.end += 1
        return self.end - 1

    def compact(self) -> None:
        newest = {key: offset for offset, (key, _) in self.records.items()}
        self.records = {offset: record for offset, record in self.records.items() if newest[record[0]] == offset}

    def read(self, offset: int) -> list[Any]:
        return [
            SimpleNamespace(topic=NAME, partition=0, offset=at, key=key, value=value)
            for at, (key, value) in sorted(self.records.items())
            if at >= offset
        ]


class Table:
    """The Faust table of one curator; what comes before and after each of its requests is for a subclass to say."""

    def __init__(self, topic: ChangelogTopic, owner: str = "curator-0") -> None:
        self.topic = topic
        self.app = SimpleNamespace(consumer_generation_id=1)
        self.reads = 0
        self.changelog = Changelog(NAME, owner, self.read_from)
        self.changelog.table = self

    async def request(self, what: str) -> None:
        """Be on the way to the broker, or back."""

    async def send_changelog(self, partition: int, key: bytes, value: bytes | None) -> Any:
        await self.request("send")
        offset = self.topic.append(key, value)
        await self.request("sent")
        return SimpleNamespace(offset=offset)

    async def read_from(self, topic: str, partition: int, offset: int, stop: int | None = None) -> list[Any]:
        if topic != NAME:
            return await self.read_inputs(topic, partition, offset, stop)
        assert partition == 0
        await self.request("read")
        self.reads += 1
        return self.topic.read(offset)

    async def read_inputs(self, topic: str, partition: int, offset: int, stop: int | None) -> list[Any]:
        """Return what an input has between two offsets: by default nothing, as of a topic that was compacted."""
        return []

    async def recover(self) -> None:
        """Read the changelog as Faust does when a partition is assigned."""
        for record in self.topic.read(0):
            await self.changelog.note_recovered(SimpleNamespace(message=record))
