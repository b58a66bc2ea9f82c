"""Records of each topic, and those of the curator's journal: decoded, and applied by each agent."""

import contextlib
import json
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

import topics
from benchmarks.fuzz.bundles import BUNDLE, GOLDEN
from console.bundles.bundle_inputs import TASKS, tables_of
from console.runs.bundle import Bundle
from dart_streams.bus.codec import ID, SCHEMA, Header, Undecodable
from dart_streams.config import parse
from dart_streams.config import tasks as task_sets
from dart_streams.curation import journal
from dart_streams.curation.agents import bind_agents
from dart_streams.curation.changelog import claim_key, entry_key, snapshot_key
from dart_streams.curation.reducer import Agent, advance

ALLOWED = (Undecodable, journal.JournalGap)
ROUNDS = 500
"""Records after which the agents begin anew: a state grows with its records, which is no finding."""
MODES = {"": "rollout-wise", "coupled ": "coupled"}
"""What precedes an agent's name, by the mode that its settings have."""


def record_samples() -> list[bytes]:
    """Return the samples of records and of journals."""
    return golden_records() + journal_records()


def golden_records() -> list[bytes]:
    """Return each golden record, after a line with its topic and id."""
    samples = []
    for file in sorted(GOLDEN.glob("*.json")):
        record = json.loads(file.read_bytes())
        samples.append(f"{file.name.partition('.v')[0]} {record['headers']['id']}\n{record['value']}".encode())
    return samples


def journal_records() -> list[bytes]:
    """Return the state of each agent after the golden records, its snapshot, and their entry, after a like line."""
    samples = []
    for name, agent in own_agents().items():
        state, inputs = agent.state(), []
        for offset, record in enumerate(golden_records()):
            if (read := input_of(record, offset)).topic in {topic.name for topic in agent.inputs}:
                state = advance(agent, state, journal.record_of(read)).state
                inputs.append(read)
        samples.append(f"state {name}\n".encode() + msgspec.msgpack.encode(state))
        samples.append(f"snapshot {name}\n".encode() + journal.encode(journal.snapshot_of(1, state, inputs[:1])))
        samples.append(f"entry {name}\n".encode() + journal.encode(journal.Entry(1, "", inputs)))
    return samples


def own_agents() -> dict[str, Agent]:
    """Return all agents by name, bound to each mode and to a task set with the task of the golden records."""
    tables = tables_of(Bundle(BUNDLE), TASKS)
    tables["pages"].append(tables["pages"][0] | {"environment": "miniwob", "page": "click-test-2"})
    task_set, further = task_sets.parse(tables, TASKS), {"tasks": {"proposals": True}, "feedback": {"enabled": True}}
    return {
        before + agent.name: agent
        for before, mode in MODES.items()
        for agent in bind_agents(parse({**further, "curation": {"dispatch": {"mode": mode}}}), task_set)
        if agent.name == "dispatch" or not before
    }


def input_of(sample: bytes, offset: int) -> journal.JournalInput:
    """Return a record of the topic in a sample's first line, or of any."""
    line, _, value = sample.partition(b"\n")
    name, _, identity = line.partition(b" ")
    topic = topics.BY_NAME.get(name.decode(errors="replace")) or topics.ALL[zlib.crc32(name) % len(topics.ALL)]
    headers: list[Header] = [(SCHEMA, topic.schema.encode()), (ID, identity)]
    return journal.JournalInput(topic.name, 0, offset, 0, None, value, headers)


def restore_journal(agent: Agent, kind: bytes, value: bytes) -> None:
    """Restore an agent from a state, a snapshot or an entry."""
    if kind == b"state":
        value = journal.encode(journal.Snapshot(1, zlib.compress(value)))
    key = entry_key(0, 1, 0) if kind == b"entry" else snapshot_key(0, 1)
    first = journal.encode(journal.snapshot_of(0, agent.state()))
    journal.restore(
        agent, {claim_key(0, 1): journal.encode(journal.Claim("c")), snapshot_key(0, 1): first, key: value}, 0
    )


@contextlib.asynccontextmanager
async def apply_records(_: Path) -> AsyncIterator[Callable[[bytes], Awaitable[None]]]:
    """Decode a record and let each agent that reads its topic apply it, or restore an agent's journal."""
    agents, states, played = own_agents(), dict[str, Any](), 0

    async def play(sample: bytes) -> None:
        nonlocal played
        line, _, value = sample.partition(b"\n")
        kind, _, own = line.partition(b" ")
        if (agent := agents.get(own.decode(errors="replace"))) and kind in (b"state", b"snapshot", b"entry"):
            restore_journal(agent, kind, value)
            return
        played += 1
        if played % ROUNDS == 1:
            states.update({name: agent.state() for name, agent in agents.items()})
        record = journal.record_of(input_of(sample, played))
        for name, agent in agents.items():
            if record.topic in {topic.name for topic in agent.inputs}:
                state, states[name] = states[name], agent.state()  # In case that it raises.
                states[name] = advance(agent, state, record).state

    yield play
