"""An agent's state in a Faust table: a journal of applied inputs and a snapshot now and then, a partition each."""

from collections.abc import Sequence
from typing import Any

import structlog

from dart_streams.curation.journal import (
    Entry,
    Input,
    Restored,
    apply_all,
    encode,
    entry_key,
    newest,
    restore,
    snapshot_key,
    snapshot_of,
)
from dart_streams.curation.rebuild import RebuiltState
from dart_streams.curation.reducer import Agent, InputRecord, ReducerResult

SNAPSHOT_BYTES = 256 * 1024
SNAPSHOT_ENTRIES = 1024


class JournaledState:
    """One partition of an agent's state, brought back from the table.

    ``unsent`` are the inputs and steps of the last batch: whether their effects were published is not known.
    """

    def __init__(self, agent: Agent, table: Any, partition: int) -> None:
        restored = restore(agent, table.data, partition)
        self.agent = agent
        self.table = table
        self.partition = partition
        self.state = restored.state
        self.sequence = restored.sequence
        self.unsent = restored.last
        self._slot = restored.entries
        self._bytes = 0
        self._snapshot_at = SNAPSHOT_BYTES
        self._tell(restored)

    def _tell(self, restored: Restored) -> None:
        log = structlog.get_logger().bind(agent=self.agent.name, partition=self.partition)
        log.info("state restored", batches=restored.sequence, since_snapshot=restored.entries)
        if restored.diverged is not None:
            log.warning(
                "the journal gave another state than when it was written",
                batch=restored.diverged,
                why="the curation settings have changed since, or two curators wrote at the same time",
            )

    def apply(self, inputs: Sequence[tuple[Input, InputRecord]]) -> list[tuple[Input, ReducerResult]]:
        """Apply inputs in order and return what is new: those applied before are left out."""
        self.state, steps = apply_all(self.agent, self.state, inputs)
        return [(read, step) for read, step in steps if step.applied is not None]

    async def record(self, before: str, inputs: list[Input]) -> None:
        """Journal a batch that was applied to the state of digest ``before``; return when the broker has it."""
        self.sequence += 1
        entry = encode(Entry(self.sequence, before, inputs))
        await self._write(entry_key(self.partition, self._slot), entry)
        self._slot += 1
        self._bytes += len(entry)

    def is_behind(self) -> bool:
        """Say whether the table has batches of this partition that were not written here."""
        return newest(self.table.data, self.partition) > self.sequence

    async def adopt(self, found: RebuiltState) -> None:
        """Begin with a state that the topics have told, as the table had none; return when a snapshot is kept."""
        log = structlog.get_logger().bind(agent=self.agent.name, partition=self.partition)
        log.warning("journal lost: the state is told by the topics", differs_from=found.diverged)
        self.state, self.unsent, self.sequence = found.state, found.last, 1
        await self._write(snapshot_key(self.partition), encode(snapshot_of(self.sequence, self.state)))

    async def maybe_snapshot(self) -> None:
        """Replace a journal that has grown past the size of a snapshot by one, so that restoring stays quick."""
        if self._bytes >= self._snapshot_at or self._slot >= SNAPSHOT_ENTRIES:
            await self.snapshot()

    async def snapshot(self) -> None:
        """Replace the journal by a snapshot, if there is anything in it."""
        if not self._slot:
            return
        snapshot = encode(snapshot_of(self.sequence, self.state))
        await self._write(snapshot_key(self.partition), snapshot)
        self._slot = self._bytes = 0
        self._snapshot_at = max(SNAPSHOT_BYTES, 2 * len(snapshot))

    async def _write(self, key: bytes, value: bytes) -> None:
        """Set a key of the table and return when its changelog has it."""
        sent = self.table.send_changelog(self.partition, key, value)
        self.table.data[key] = value
        await sent
