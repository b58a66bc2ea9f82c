"""Reducers whose state is by task decide the same in one state as in a state for each partition of tasks."""

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import cache

import msgspec
import pytest

from benchmarks.curation_agents import finished_trajectories
from benchmarks.curation_world import task_set
from dart_streams.config import parse
from dart_streams.curation.agents import bind_agents
from dart_streams.curation.reducer import InputRecord, advance

PARTITIONS = 3
TASKS = 1_000
CONFIG = parse({"env": {"slots": 64}, "curation": {"max_staleness": 1_000}})
"""Staleness counts from the newest version of a partition, so it is left out."""
Events = tuple[msgspec.Struct, ...]


@cache
def inputs_of(name: str) -> Events:
    """The inputs of an agent: trajectories of a circle, or what difficulty makes of them."""
    if name != "budget":
        return tuple(finished_trajectories(CONFIG, 400))
    return tuple(event for decided in decide("difficulty", whole).values() for event in decided)


def whole(event: msgspec.Struct) -> int:
    return 0


def by_task(event: msgspec.Struct) -> int:
    return zlib.crc32(event.task_id.encode()) % PARTITIONS


def decide(name: str, partition_of: Callable[[msgspec.Struct], int]) -> dict[str, Events]:
    """Return the decisions of each task, in order, by an agent with a state for each partition."""
    (agent,) = (agent for agent in bind_agents(CONFIG, task_set(TASKS)) if agent.name == name)
    states: defaultdict[int, object] = defaultdict(agent.state)
    offsets: defaultdict[int, int] = defaultdict(int)
    decided: defaultdict[str, list[msgspec.Struct]] = defaultdict(list)
    for event in inputs_of(name):
        place = partition_of(event)
        record = InputRecord(agent.inputs[0].name, place, offsets[place], event)
        offsets[place] += 1
        states[place], decisions, _, refused, _ = advance(agent, states[place], record)
        assert not refused
        decided[event.task_id] += [decision.event for decision in decisions]
    return {task: tuple(events) for task, events in decided.items()}


def count(found: Iterable[Events]) -> int:
    return sum(map(len, found))


@pytest.mark.parametrize("name", ["difficulty", "budget", "groups"])
def test_partitions_by_task_change_no_decision(name: str):
    assert {by_task(event) for event in inputs_of(name)} == set(range(PARTITIONS))
    one, split = decide(name, whole), decide(name, by_task)
    assert count(one.values()) > 10
    assert split == one


def test_partitions_that_part_a_task_change_decisions():
    """A check of the comparison: by trajectory a task's finishes would come to several states."""
    parted = decide("groups", lambda event: zlib.crc32(event.trajectory_id.encode()) % PARTITIONS)
    assert parted != decide("groups", whole)
