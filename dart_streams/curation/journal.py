"""An agent's state as records: a snapshot now and then, and since then the inputs in the order they were applied.

As reducers are pure, the inputs are sufficient: restoring applies them again to the snapshot and gives the state and
also the decisions of the last batch, which may not have been published before the crash. One entry is one record, hence
atomic: either a whole batch of inputs was applied, in this order, or none of it.

A lost journal is rebuilt from the topics (:func:`rebuild`): slower, and possible only while they hold all inputs.
"""

import zlib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

import topics
from dart_streams.bus.codec import ID, decode, header
from dart_streams.curation.reducer import Agent, InputRecord, ReducerResult, advance
from dart_streams.errors import UserError
from topics.curation_log import Applied

Place = tuple[str, int, int]
"""Where a record is: its topic without prefix, its partition and its offset."""


class Input(msgspec.Struct, frozen=True, array_like=True):
    """A record as it was read, whole; ``topic`` carries no prefix, ``at_ms`` is the record's timestamp (epoch ms)."""

    topic: str
    partition: int
    offset: int
    at_ms: int
    key: bytes | None
    value: bytes
    headers: list[tuple[str, bytes]] = []


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """Batch ``sequence`` of an agent's inputs, in the order they were applied to the state of digest ``before``."""

    sequence: int
    before: str
    inputs: list[Input]


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """The whole state after batch ``sequence``, encoded and compressed."""

    sequence: int
    state: bytes


class Restored(msgspec.Struct):
    """A restored state: as of batch ``sequence``, with ``last``, the inputs and results that may be unpublished.

    ``entries`` counts the batches since the snapshot. ``diverged`` is the first batch (or logged input) that found
    another state than when it was written: the settings have changed since, or two curators wrote at the same time.
    """

    state: Any
    sequence: int
    entries: int
    last: list[tuple[Input, ReducerResult]]
    diverged: int | Place | None = None


class Gap(Exception):
    """A journal that lacks a batch: applying the rest would decide differently from what was decided."""


class MissingInputs(UserError):
    """A state that can no longer be rebuilt from the topics."""


_pack = msgspec.msgpack.Encoder()
_entries = msgspec.msgpack.Decoder(Entry)
_snapshots = msgspec.msgpack.Decoder(Snapshot)


def snapshot_key(partition: int) -> bytes:
    """Return the key of the snapshot of one partition's state."""
    return f"{partition}/snapshot".encode()


def entry_key(partition: int, slot: int) -> bytes:
    """Return the key of a journal slot. Slots count from 0 after each snapshot, so that old entries are overwritten."""
    return f"{partition}/entry/{slot}".encode()


def encode(record: Entry | Snapshot) -> bytes:
    """Return the bytes of a journal record."""
    return _pack.encode(record)


def snapshot_of(sequence: int, state: Any) -> Snapshot:
    """Return the snapshot of a state after batch ``sequence``."""
    return Snapshot(sequence, zlib.compress(_pack.encode(state), level=1))


def restore(agent: Agent, stored: Mapping[bytes, bytes], partition: int) -> Restored:
    """Return the state of ``agent`` for one partition from its stored records; the empty state from none.

    Raises
    ------
    Gap
        If an entry between the snapshot and the newest entry is missing.
    """
    snapshot, entries = stored_of(stored, partition)
    snapshot = snapshot or snapshot_of(0, agent.state())
    later = sorted((entry for entry in entries if entry.sequence > snapshot.sequence), key=lambda e: e.sequence)
    state = msgspec.msgpack.decode(zlib.decompress(snapshot.state), type=agent.state)
    restored = Restored(state, snapshot.sequence, len(later), [])
    for entry in later:
        if entry.sequence != restored.sequence + 1:
            raise Gap(f"{agent.name}: the journal of partition {partition} has no batch {restored.sequence + 1}")
        if entry.before != restored.state.progress.digest and restored.diverged is None:
            restored.diverged = entry.sequence
        restored.sequence = entry.sequence
        inputs = [(read, record_of(read)) for read in entry.inputs]
        restored.state, restored.last = apply_all(agent, restored.state, inputs)
    return restored


def newest(stored: Mapping[bytes, bytes], partition: int) -> int:
    """Return the sequence of the newest batch that is stored of a partition, 0 if none is."""
    snapshot, entries = stored_of(stored, partition)
    return max((record.sequence for record in (snapshot, *entries) if record), default=0)


def stored_of(stored: Mapping[bytes, bytes], partition: int) -> tuple[Snapshot | None, list[Entry]]:
    """Return the snapshot of a partition, if any, and its entries, in no order."""
    snapshot, prefix = stored.get(snapshot_key(partition)), f"{partition}/entry/".encode()
    entries = [_entries.decode(value) for key, value in stored.items() if key.startswith(prefix)]
    return _snapshots.decode(snapshot) if snapshot else None, entries


def rebuild(agent: Agent, entries: Iterable[Applied], inputs: Mapping[Place, Input], last: int) -> Restored:
    """Apply the inputs that ``entries`` of the curation log name, in their order; repeated entries change nothing.

    The result has the newest ``last`` inputs, and counts as one batch since an empty snapshot.

    Raises
    ------
    MissingInputs
        If one of the inputs is not there.
    """
    rebuilt = Restored(agent.state(), 1, 1, [])
    newest: deque[tuple[Input, ReducerResult]] = deque(maxlen=last)
    for entry in entries:
        source = entry.source
        place = (source.topic, source.partition, source.offset)
        read = inputs.get(place)
        if read is None:
            raise MissingInputs(
                f"the {agent.name} agent has lost its journal, and {source.topic}[{source.partition}] no longer holds "
                f"record {source.offset}, which it had applied: start a new run, or restore the changelog topics"
            )
        step = advance(agent, rebuilt.state, record_of(read))
        rebuilt.state = step.state
        if step.applied is None:
            continue
        if step.applied.state_digest != entry.state_digest and rebuilt.diverged is None:
            rebuilt.diverged = place
        newest.append((read, step))
    rebuilt.last = list(newest)
    return rebuilt


def apply_all(
    agent: Agent, state: Any, inputs: Sequence[tuple[Input, InputRecord]]
) -> tuple[Any, list[tuple[Input, ReducerResult]]]:
    """Apply inputs in order; return the state after them, and each with its result."""
    steps = []
    for read, record in inputs:
        step = advance(agent, state, record)
        state = step.state
        steps.append((read, step))
    return state, steps


def record_of(read: Input) -> InputRecord:
    """Return the record that an input stands for; raise Undecodable if it is not an event of its topic."""
    event = decode(topics.BY_NAME[read.topic], read.value, read.headers)
    identity = header(read.headers, ID) or b""
    return InputRecord(read.topic, read.partition, read.offset, event, identity.decode(errors="replace"), read.at_ms)
