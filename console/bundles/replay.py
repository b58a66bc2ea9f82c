"""Runs the data manager again over a bundle, and compares every decision with the recorded one.

The reducers apply the inputs in the order of the curation log. Ids of decisions, their published bytes, and the digest
that chains them have to be equal.
"""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any

import msgspec

from console.bundles.bundle_inputs import bundle_events, config_of, tasks_of
from console.bundles.progress import report_progress
from console.runs.bundle import Bundle, BundleError
from console.runs.run_log import headers_of
from dart_streams.bus.codec import ID, Undecodable, find_header
from dart_streams.config.text import MALFORMED
from dart_streams.curation.agents import bind_agents
from dart_streams.curation.journal import JournalInput, record_of
from dart_streams.curation.reducer import Decision, InputRecord, advance
from topics import curation_log
from topics.curation_log import Applied, Source

DECIDED_OTHERWISE = (
    "the same inputs were decided on differently: by another version of the reducers, other settings or another task "
    "set than this bundle's (a resumed run may have changed them)"
)


class Count(msgspec.Struct):
    """Counts of an agent's inputs, its decisions, and the decisions whose published bytes were compared.

    ``rounded`` decisions differ in the last digits: before 0.3 these depended on the Python and the processor.
    """

    agent: str
    inputs: int = 0
    decisions: int = 0
    bytes_compared: int = 0
    rounded: int = 0


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """The first difference of a replay: both sides, and the probable cause."""

    agent: str
    input: str
    what: str
    recorded: Any
    replayed: Any
    cause: str


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a replay; ``digest`` covers all agents' last states, to compare replays of two machines."""

    equal: bool
    digest: str
    agents: list[Count]
    divergence: Divergence | None = None


class Diverged(Exception):
    """The replay differs at a log entry."""

    def __init__(self, entry: Applied, what: str, recorded: Any, replayed: Any, cause: str) -> None:
        super().__init__(what)
        self.divergence = Divergence(
            agent=entry.agent, input=place(entry.source), what=what, recorded=recorded, replayed=replayed, cause=cause
        )


def replay(bundle: Bundle, report: Callable[[str], None] = lambda _: None) -> Outcome:
    """Repeat and compare every decision of a bundle; raise BundleError if it lacks a topic or has a newer schema.

    ``report`` receives lines of progress.
    """
    rerun = Rerun(bundle)
    divergence = None
    try:
        total = bundle.sections[curation_log.TOPIC.name].items if bundle.has(curation_log.TOPIC.name) else None
        for entry in report_progress(log_entries(bundle), "inputs decided on again", report, total):
            rerun.repeat(entry)
    except Diverged as diverged:
        divergence = diverged.divergence
    if divergence is None and not any(count.inputs for count in rerun.counts.values()):
        raise BundleError(f"{bundle.path} has an empty curation log: nothing was decided before it was captured")
    return Outcome(
        equal=divergence is None, digest=rerun.digest(), agents=list(rerun.counts.values()), divergence=divergence
    )


class Rerun:
    """The agents with their states, the recorded inputs and the published values."""

    def __init__(self, bundle: Bundle) -> None:
        self.agents = {agent.name: agent for agent in bind_agents(config_of(bundle), tasks_of(bundle))}
        read = {topic.name for agent in self.agents.values() for topic in agent.inputs}
        self.inputs = {source: record for name in read for source, record in recorded_inputs(bundle, name)}
        self.offsets = defaultdict[tuple[str, int], list[int]](list)
        for source in sorted(self.inputs, key=lambda source: source.offset):
            self.offsets[source.topic, source.partition].append(source.offset)
        written = {topic.name for agent in self.agents.values() for topic in agent.outputs}
        self.published = {name: published_values(bundle, name) for name in written}
        self.states: dict[tuple[str, int], Any] = {}
        self.counts = {name: Count(name) for name in self.agents}

    def repeat(self, entry: Applied) -> None:
        """Apply one logged input again; raise :class:`Diverged` if the result differs from the log."""
        agent = self.agents.get(entry.agent)
        if agent is None:
            raise Diverged(entry, "agent", entry.agent, None, "this program has no such agent")
        key = (agent.name, entry.source.partition if len(agent.inputs) == 1 else 0)
        state = self.states.get(key) or agent.state()
        self.raise_on_gap(entry, state)
        step = advance(agent, state, self.record(entry))
        self.states[key] = step.state
        if step.applied is None:
            raise Diverged(entry, "order", place(entry.source), None, "it comes after a later input")
        self.compare(entry, step.applied, step.decisions)
        # The next digest follows from the recorded one, also where that has decisions that were rounded otherwise.
        step.state.progress.digest = entry.state_digest
        count = self.counts[agent.name]
        count.inputs += 1
        count.decisions += len(step.decisions)

    def record(self, entry: Applied) -> InputRecord:
        """Return a logged input."""
        cause = "the input is not in the bundle: lost to retention before the capture"
        if entry.source in self.inputs:
            try:
                return record_of(self.inputs[entry.source])
            except Undecodable as error:
                cause = str(error)
        raise Diverged(entry, "input", place(entry.source), None, cause)

    def raise_on_gap(self, entry: Applied, state: Any) -> None:
        """Raise :class:`Diverged` if a readable input before this one is not in the log."""
        source = entry.source
        after = state.progress.applied.get(f"{source.topic}/{source.partition}", -1) + 1
        offsets = self.offsets[source.topic, source.partition]  # A log from elsewhere may name any offset.
        for offset in offsets[bisect_left(offsets, after) : bisect_left(offsets, source.offset)]:
            skipped = msgspec.structs.replace(source, offset=offset)
            if readable(self.inputs[skipped]):
                cause = "the log lacks an input before this one: entries were lost, or the log's start to retention"
                raise Diverged(entry, "log", None, place(skipped), cause)

    def compare(self, entry: Applied, again: Applied, decisions: list[Decision]) -> None:
        """Raise :class:`Diverged` unless ids, bytes and digest equal the recorded ones, or only roundings differ."""
        if again.decisions != entry.decisions:
            raise Diverged(entry, "decisions", entry.decisions, again.decisions, DECIDED_OTHERWISE)
        count = self.counts[entry.agent]
        rounded = count.rounded
        for decision in decisions:
            if (published := self.published[decision.topic.name].get(decision.id)) is not None:
                count.bytes_compared += 1
                if published == (encoded := msgspec.json.encode(decision.event)):
                    continue
                if not is_rounded(published, encoded):
                    what = f"bytes of {decision.id}"
                    raise Diverged(entry, what, published.decode(errors="replace"), encoded.decode(), DECIDED_OTHERWISE)
                count.rounded += 1
        if again.state_digest != entry.state_digest and count.rounded == rounded:
            raise Diverged(entry, "digest", entry.state_digest, again.state_digest, DECIDED_OTHERWISE)

    def digest(self) -> str:
        """Return one digest of all agents' states."""
        hashed = blake2b(digest_size=16)
        for (name, partition), state in sorted(self.states.items()):
            hashed.update(f"{name}/{partition} {state.progress.digest}\n".encode())
        return hashed.hexdigest()


def is_rounded(recorded: bytes, replayed: bytes) -> bool:
    """Return whether two events differ in the last digits of numbers only."""

    def equal(one: Any, other: Any) -> bool:
        if isinstance(one, dict) and isinstance(other, dict):
            return one.keys() == other.keys() and all(equal(one[name], other[name]) for name in one)
        if isinstance(one, list) and isinstance(other, list):
            return len(one) == len(other) and all(map(equal, one, other))
        if isinstance(one, float) and isinstance(other, float):
            return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
        return bool(one == other)

    try:
        return equal(msgspec.json.decode(recorded), msgspec.json.decode(replayed))
    except MALFORMED:
        return False


def log_entries(bundle: Bundle) -> Iterator[Applied]:
    """Yield each entry of the curation log once; a crash may have repeated some."""
    seen: set[tuple[str, Source]] = set()
    for entry in bundle_events(bundle, curation_log.TOPIC):
        if (key := (entry.agent, entry.source)) not in seen:
            seen.add(key)
            yield entry


def recorded_inputs(bundle: Bundle, topic: str) -> Iterator[tuple[Source, JournalInput]]:
    """Yield a topic's records as journal inputs."""
    for record in bundle.records(topic):
        source = Source(topic=topic, partition=record.partition, offset=record.offset)
        # The decoder rejects an empty value.
        value, headers = record.value or b"", headers_of(record)
        yield source, JournalInput(topic, record.partition, record.offset, record.at_ms, record.key, value, headers)


def published_values(bundle: Bundle, topic: str) -> dict[str, bytes | None]:
    """Return the first published value of each record id of a topic; the id is empty if a record has none."""
    values: dict[str, bytes | None] = {}
    for record in bundle.records(topic):
        values.setdefault((find_header(headers_of(record), ID) or b"").decode(errors="replace"), record.value)
    return values


def place(source: Source) -> str:
    """Return a place as text, such as ``trajectories[0]@17``."""
    return f"{source.topic}[{source.partition}]@{source.offset}"


def readable(record: JournalInput) -> bool:
    """Return whether an agent could decode a record; others became dead letters and are not in the log."""
    try:
        return bool(record_of(record))
    except Undecodable:
        return False
