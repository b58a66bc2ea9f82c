"""An agent's state as records: a snapshot now and then, and since then the inputs in the order they were applied.

As reducers are pure, the inputs are sufficient: restoring applies them again to the snapshot and gives the state and
also the decisions of the last batch, which may not have been published before the crash. One entry is one record, hence
atomic: either a whole batch of inputs was applied, in this order, or none of it.

Each owner of a partition writes under keys of its own, which have its incarnation: a claim, then a snapshot of what it
found, then entries and snapshots. Only the newest incarnation that has both claim and snapshot counts, so a former
owner that goes on writing changes nothing of it. Its entries of after the claim were never published.

A lost journal is rebuilt from the topics (:func:`rebuild`): slower, and possible only while they hold all inputs.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

import topics
from dart_streams.bus.codec import ID, decode, find_header
from dart_streams.curation.journal_keys import CLAIM, ENTRY, SNAPSHOT, parse_key
from dart_streams.curation.reducer import Agent, InputRecord, ReducerResult, advance
from dart_streams.errors import UserError
from topics.curation_log import Applied

Place = tuple[str, int, int]
"""Where a record is: its topic without prefix, its partition and its offset."""


class JournalInput(msgspec.Struct, frozen=True, array_like=True):
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
    inputs: list[JournalInput]


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """A whole state, encoded and compressed, and the inputs that follow it up to batch ``sequence``.

    There are such inputs while their decisions may not have been published.
    """

    sequence: int
    state: bytes
    unpublished: list[JournalInput] = []


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """The claim of a partition by a worker: what other owners write from here on does not count."""

    owner: str


class RestoredState(msgspec.Struct):
    """A restored state: as of batch ``sequence``, with ``last``, the inputs and results that may be unpublished.

    ``snapshot`` is what restores all this. ``entries`` counts the batches since the snapshot found. ``diverged`` is the
    first batch (or logged input) that found another state than when it was written: the settings have changed since, or
    two curators wrote a journal of before there were incarnations.
    """

    state: Any
    sequence: int
    entries: int
    last: list[tuple[JournalInput, ReducerResult]]
    snapshot: Snapshot
    diverged: int | Place | None = None


class JournalGap(Exception):
    """A journal that lacks a batch: applying the rest would decide differently from what was decided."""


class MissingInputs(UserError):
    """A state that can no longer be rebuilt from the topics."""


_pack = msgspec.msgpack.Encoder()
_entries = msgspec.msgpack.Decoder(Entry)
_snapshots = msgspec.msgpack.Decoder(Snapshot)


def encode(record: Entry | Snapshot | Claim) -> bytes:
    """Return the bytes of a journal record."""
    return _pack.encode(record)


def snapshot_of(sequence: int, state: Any, unpublished: Sequence[JournalInput] = ()) -> Snapshot:
    """Return the snapshot after batch ``sequence`` of a state that ``unpublished`` has yet to be applied to."""
    return Snapshot(sequence, zlib.compress(_pack.encode(state), level=1), list(unpublished))


def state_of(agent: Agent, snapshot: Snapshot) -> Any:
    """Return the state of a snapshot, without its unpublished inputs."""
    return msgspec.msgpack.decode(zlib.decompress(snapshot.state), type=agent.state)


def restore(agent: Agent, stored: Mapping[bytes, bytes], partition: int) -> RestoredState:
    """Return the state of ``agent`` for one partition from its stored records; the empty state from none.

    Raises
    ------
    Gap
        If an entry between the snapshot and the newest entry is missing.
    """
    snapshot, entries = read_history(stored, partition)
    snapshot = snapshot or snapshot_of(0, agent.state())
    later = sorted((entry for entry in entries if entry.sequence > snapshot.sequence), key=lambda e: e.sequence)
    state, last = apply_all(agent, state_of(agent, snapshot), with_records(snapshot.unpublished))
    restored = RestoredState(state, snapshot.sequence, len(later), last, snapshot)
    for entry in later:
        if entry.sequence != restored.sequence + 1:
            raise JournalGap(f"{agent.name}: the journal of partition {partition} has no batch {restored.sequence + 1}")
        if entry.before != restored.state.progress.digest and restored.diverged is None:
            restored.diverged = entry.sequence
        restored.sequence = entry.sequence
        if entry is later[-1]:
            restored.snapshot = snapshot_of(entry.sequence, restored.state, entry.inputs)
        restored.state, restored.last = apply_all(agent, restored.state, with_records(entry.inputs))
    return restored


def read_history(stored: Mapping[bytes, bytes], partition: int) -> tuple[Snapshot | None, list[Entry]]:
    """Return the snapshot of a partition and its entries, in no order: those of the newest owner that has a snapshot.

    Journals of before there were incarnations count as those of owner 0, which need neither claim nor snapshot.
    """
    records: dict[int, dict[bytes, bytes]] = {}
    for name, value in stored.items():
        key = parse_key(name)
        if key and key.partition == partition:
            records.setdefault(key.incarnation, {})[key.kind] = value
    owned = [incarnation for incarnation, kinds in records.items() if {CLAIM, SNAPSHOT} <= kinds.keys()]
    kinds = records.get(max(owned, default=0), {})
    snapshot = kinds.get(SNAPSHOT)
    entries = [_entries.decode(value) for kind, value in kinds.items() if kind.startswith(ENTRY)]
    return _snapshots.decode(snapshot) if snapshot else None, entries


def rebuild(
    agent: Agent,
    logged: Sequence[Applied],
    inputs: Mapping[Place, JournalInput],
    last: int,
    journaled: Iterable[Entry] = (),
) -> RestoredState:
    """Apply the inputs that ``logged`` of the curation log names, in their order; repeated entries change nothing.

    Batches that are left of the journal go on from there, as they may not have been logged yet, or not whole: each that
    was applied to a state which the log, or a batch before it, has led to.

    The newest ``last`` inputs, at least, are taken as unpublished. The result counts as one batch.

    Raises
    ------
    MissingInputs
        If one of the inputs is not there.
    """
    rebuilt = RestoredState(agent.state(), 1, 1, [], snapshot_of(1, agent.state()))
    reached = {rebuilt.state.progress.digest}
    unpublished = max(0, len(logged) - last)
    for index, entry in enumerate(logged):
        if index == unpublished:
            rebuilt.snapshot = snapshot_of(1, rebuilt.state)
        read = logged_input(agent, entry, inputs)
        step = advance(agent, rebuilt.state, record_of(read))
        rebuilt.state = step.state
        if step.applied is None:
            continue
        if step.applied.state_digest != entry.state_digest and rebuilt.diverged is None:
            rebuilt.diverged = (read.topic, read.partition, read.offset)
        if index >= unpublished:
            rebuilt.last.append((read, step))
        reached |= {entry.state_digest, step.applied.state_digest}
    if unpublished == len(logged):
        rebuilt.snapshot = snapshot_of(1, rebuilt.state)
    for batch in sorted(journaled, key=lambda entry: entry.sequence):
        if batch.before in reached:
            rebuilt.state, steps = apply_all(agent, rebuilt.state, with_records(batch.inputs))
            rebuilt.last += [(read, step) for read, step in steps if step.applied is not None]
            reached.add(rebuilt.state.progress.digest)
    rebuilt.snapshot = msgspec.structs.replace(rebuilt.snapshot, unpublished=[read for read, _ in rebuilt.last])
    return rebuilt


def logged_input(agent: Agent, entry: Applied, inputs: Mapping[Place, JournalInput]) -> JournalInput:
    """Return the input that an entry of the curation log names; raise MissingInputs if it is not there."""
    source = entry.source
    read = inputs.get((source.topic, source.partition, source.offset))
    if read is None:
        raise MissingInputs(
            f"the {agent.name} agent has lost its journal, and {source.topic}[{source.partition}] no longer holds "
            f"record {source.offset}, which it had applied: start a new run, or restore the changelog topics"
        )
    return read


def with_records(inputs: Iterable[JournalInput]) -> list[tuple[JournalInput, InputRecord]]:
    """Return inputs with the records that they stand for."""
    return [(read, record_of(read)) for read in inputs]


def apply_all(
    agent: Agent, state: Any, inputs: Sequence[tuple[JournalInput, InputRecord]]
) -> tuple[Any, list[tuple[JournalInput, ReducerResult]]]:
    """Apply inputs in order; return the state after them, and each with its result."""
    steps = []
    for read, record in inputs:
        step = advance(agent, state, record)
        state = step.state
        steps.append((read, step))
    return state, steps


def record_of(read: JournalInput) -> InputRecord:
    """Return the record that an input stands for; raise Undecodable if it is not an event of its topic."""
    event = decode(topics.BY_NAME[read.topic], read.value, read.headers)
    identity = find_header(read.headers, ID) or b""
    return InputRecord(read.topic, read.partition, read.offset, event, identity.decode(errors="replace"), read.at_ms)
