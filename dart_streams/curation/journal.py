"""An agent's state as records: occasional snapshots, and the inputs applied since, in order.

Reducers are pure, so applying the inputs to the snapshot restores the state. It also restores the decisions of the last
batch, which a crash may have left unpublished. One record holds one batch, so batches are atomic.

Each owner writes under keys with its incarnation: a claim, a snapshot of the state it found, then entries and
snapshots. Only the newest incarnation with claim and snapshot counts, so a former owner cannot change it.

A lost journal is rebuilt from the topics (:func:`rebuild`), as long as they hold all inputs.
"""

import contextlib
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import msgspec

import topics
from dart_streams.bus.codec import ID, Undecodable, decode, find_header
from dart_streams.config.text import MALFORMED
from dart_streams.curation.changelog import CLAIM, ENTRY, PART, SNAPSHOT, parse_key
from dart_streams.curation.reducer import Agent, InputRecord, ReducerResult, advance
from dart_streams.errors import UserError
from topics.curation_log import Applied

Place = tuple[str, int, int]
"""A record's topic without prefix, partition and offset."""


class JournalInput(msgspec.Struct, frozen=True, array_like=True):
    """A complete input record; ``topic`` has no prefix, ``at_ms`` is the record's timestamp (epoch ms)."""

    topic: Annotated[str, msgspec.Meta(pattern=f"^({'|'.join(topics.BY_NAME)})$")]
    partition: int
    offset: int
    at_ms: int
    key: bytes | None
    value: bytes
    headers: list[tuple[str, bytes]] = []


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """Batch ``sequence`` of an agent's inputs in order, applied to the state with digest ``before``."""

    sequence: int
    before: str
    inputs: list[JournalInput]


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """A compressed state, and the following inputs up to batch ``sequence`` whose decisions may be unpublished.

    A large one has neither: it is encoded in the records with the numbers ``parts``.
    """

    sequence: int
    state: bytes
    unpublished: list[JournalInput] = []
    parts: list[int] = []


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """A worker's claim of a partition: records that other owners write afterwards do not count."""

    owner: str


class RestoredState(msgspec.Struct):
    """A state as of batch ``sequence``; ``last`` are inputs and results that may be unpublished.

    ``snapshot`` restores all of it. ``entries`` counts the batches since the stored snapshot. ``diverged`` is the first
    batch (or logged input) whose state differs from the recorded one: the settings have changed, or two curators wrote
    a journal without incarnations.
    """

    state: Any
    sequence: int
    entries: int
    last: list[tuple[JournalInput, ReducerResult]]
    snapshot: Snapshot
    diverged: int | Place | None = None


MOST_STATE_BYTES, MOST_MEMORIES_BYTES = 2**26, 2**22
"""Largest state of a snapshot, that of as many tasks as a run may have, and the memories of recipes in it: one byte of
them may take 70 when decoded. A larger state is rebuilt from the topics."""

PART_BYTES = 2**23
"""Largest record of a snapshot; a larger snapshot is written in parts."""


class JournalGap(Exception):
    """A missing batch or a damaged snapshot: applying the rest would change decisions."""


class MissingInputs(UserError):
    """A state that can no longer be rebuilt from the topics."""


_pack = msgspec.msgpack.Encoder()
_entries = msgspec.msgpack.Decoder(Entry)
_snapshots = msgspec.msgpack.Decoder(Snapshot)


def encode(record: Entry | Snapshot | Claim) -> bytes:
    """Return the bytes of a journal record."""
    return _pack.encode(record)


def snapshot_of(sequence: int, state: Any, unpublished: Sequence[JournalInput] = ()) -> Snapshot:
    """Return the snapshot after batch ``sequence`` of a state without its ``unpublished`` inputs."""
    return Snapshot(sequence, zlib.compress(_pack.encode(state), level=1), list(unpublished))


def split_snapshot(snapshot: Snapshot, turn: int) -> tuple[dict[int, bytes], bytes]:
    """Return the parts of a snapshot by number, none for a small one, and the record that is written after them.

    Parts of odd turns and of even ones have other numbers, so that those of the last snapshot stay as they are.
    """
    encoded = encode(snapshot)
    if len(encoded) <= PART_BYTES:
        return {}, encoded
    pieces = range(0, len(encoded), PART_BYTES)
    parts = {2 * index + turn % 2: encoded[at : at + PART_BYTES] for index, at in enumerate(pieces)}
    return parts, encode(Snapshot(snapshot.sequence, b"", parts=[*parts]))


def state_of(agent: Agent, snapshot: Snapshot) -> Any:
    """Return the state of a snapshot, without its unpublished inputs; raise JournalGap for a damaged or huge one."""
    expanding = zlib.decompressobj()
    try:
        encoded = expanding.decompress(snapshot.state, MOST_STATE_BYTES)
        if not expanding.eof:
            raise JournalGap(f"{agent.name}: a snapshot is cut off, or has a state above {MOST_STATE_BYTES} bytes")
        if len(msgspec.msgpack.decode(encoded, type=dict[str, msgspec.Raw]).get("memories", b"")) > MOST_MEMORIES_BYTES:
            raise JournalGap(f"{agent.name}: a snapshot has memories above {MOST_MEMORIES_BYTES} bytes")
        return msgspec.msgpack.decode(encoded, type=agent.state)
    except (zlib.error, *MALFORMED) as error:
        raise JournalGap(f"{agent.name}: a snapshot is damaged ({error})") from None


def restore(agent: Agent, stored: Mapping[bytes, bytes], partition: int) -> RestoredState:
    """Restore the state of ``agent`` on one partition; raise JournalGap (Undecodable) if it (an input) is damaged."""
    snapshot, entries, damaged = read_history(stored, partition)
    if damaged:
        raise JournalGap(f"{agent.name}: the journal of partition {partition} has a damaged {damaged[0]}")
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


def read_history(stored: Mapping[bytes, bytes], partition: int) -> tuple[Snapshot | None, list[Entry], list[str]]:
    """Return snapshot and unordered entries of a partition's newest owner that has a snapshot, and what is damaged.

    Journals without incarnations belong to owner 0, which needs neither claim nor snapshot.
    """
    records: dict[int, dict[bytes, bytes]] = {}
    for name, value in stored.items():
        key = parse_key(name)
        if key and key.partition == partition:
            records.setdefault(key.incarnation, {})[key.kind] = value
    owned = [incarnation for incarnation, kinds in records.items() if {CLAIM, SNAPSHOT} <= kinds.keys()]
    snapshot, entries, damaged = None, [], []
    newest = records.get(max(owned, default=0), {})
    for kind, value in newest.items():
        try:
            if kind == SNAPSHOT:
                snapshot = _snapshots.decode(value)
                if snapshot.parts:
                    parts = [newest.get(b"%s%d" % (PART, number), b"") for number in snapshot.parts]
                    snapshot = _snapshots.decode(b"".join(parts))
            elif kind.startswith(ENTRY):
                entries.append(_entries.decode(value))
        except MALFORMED:
            damaged.append(kind.decode())
    return snapshot, entries, damaged


def rebuild(
    agent: Agent,
    logged: Sequence[Applied],
    inputs: Mapping[Place, JournalInput],
    last: int,
    journaled: Iterable[Entry] = (),
) -> RestoredState:
    """Apply the inputs that ``logged`` of the curation log names, in order; repeated entries change nothing.

    The remaining batches of the journal follow, as they may be missing from the log: each whose previous state was
    reached. At least the newest ``last`` inputs count as unpublished, and the result as one batch. Raises MissingInputs
    if an input is gone.
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
            with contextlib.suppress(Undecodable):
                rebuilt.state, steps = apply_all(agent, rebuilt.state, with_records(batch.inputs))
                rebuilt.last += [(read, step) for read, step in steps if step.applied is not None]
                reached.add(rebuilt.state.progress.digest)
    rebuilt.snapshot = msgspec.structs.replace(rebuilt.snapshot, unpublished=[read for read, _ in rebuilt.last])
    return rebuilt


def logged_input(agent: Agent, entry: Applied, inputs: Mapping[Place, JournalInput]) -> JournalInput:
    """Return the input of a curation-log entry; raise MissingInputs if it is gone."""
    source = entry.source
    if (read := inputs.get((source.topic, source.partition, source.offset))) is None:
        raise MissingInputs(
            f"the {agent.name} agent has lost its journal, and {source.topic}[{source.partition}] no longer holds "
            f"record {source.offset}, which it had applied: start a new run, or restore the changelog topics"
        )
    return read


def with_records(inputs: Iterable[JournalInput]) -> list[tuple[JournalInput, InputRecord]]:
    """Return inputs paired with their records."""
    return [(read, record_of(read)) for read in inputs]


def apply_all(
    agent: Agent, state: Any, inputs: Sequence[tuple[JournalInput, InputRecord]]
) -> tuple[Any, list[tuple[JournalInput, ReducerResult]]]:
    """Apply inputs in order; return the final state, and each input with its result."""
    steps = []
    for read, record in inputs:
        step = advance(agent, state, record)
        state = step.state
        steps.append((read, step))
    return state, steps


def record_of(read: JournalInput) -> InputRecord:
    """Return the record of an input; raise Undecodable if it is no event of its topic."""
    event = decode(topics.BY_NAME[read.topic], read.value, read.headers)
    identity = find_header(read.headers, ID) or b""
    return InputRecord(read.topic, read.partition, read.offset, event, identity.decode(errors="replace"), read.at_ms)
