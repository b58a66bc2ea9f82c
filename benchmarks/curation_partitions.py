"""Decisions of agents whose topic is partitioned by task: ``dart-streams bench partitions``.

Plays the circle in memory with one partition, and applies its trajectories again in N partitions, each with a state.
Counts trajectories whose decisions differ from those of one partition, and finishes that an order tracker refuses.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from benchmarks.curation_world import Odds, SimulatedCircle, task_set
from dart_streams.bus.clients import hash_of
from dart_streams.config import Config, parse
from dart_streams.config.tasks import TaskSet
from dart_streams.curation import difficulty, groups
from dart_streams.curation.agents import bind_agents
from dart_streams.curation.in_memory import Written
from dart_streams.curation.order_tracker import Limits, order_key_of
from dart_streams.curation.reducer import InputRecord, advance
from topics import trajectories

ODDS = Odds(faults=0.02, partial=0.05, lift=0.002)
READERS = (difficulty.NAME, groups.NAME)
"""Agents that read trajectories, whose states are of tasks."""
_encode = msgspec.json.Encoder(order="deterministic").encode


class Applied(msgspec.Struct):
    """The decisions of each agent on each trajectory; refused finishes, stale members and the largest jump."""

    decisions: dict[str, list[bytes]]
    refused: int = 0
    stale: int = 0
    jump: int = 0
    """Most groups between the newest that a partition knows and its next one."""


def apply_partitioned(config: Config, tasks: TaskSet, log: Sequence[Written], count: int) -> Applied:
    """Apply trajectories in ``count`` partitions, in the order of the log."""
    agents = {agent.name: agent for agent in bind_agents(config, tasks) if agent.name in READERS}
    states = [{name: agent.state() for name, agent in agents.items()} for _ in range(count)]
    offsets, newest = [0] * count, [-1] * count
    found = Applied({name: [] for name in agents})
    for written in log:
        place = hash_of(written.event.task_id.encode()) % count
        record = InputRecord(trajectories.TOPIC.name, place, offsets[place], written.event, written.id)
        offsets[place] += 1
        number = order_key_of(written.event).number
        found.jump = max(found.jump, number - newest[place])
        newest[place] = max(newest[place], number)
        refused = False
        for name, agent in agents.items():
            result = advance(agent, states[place][name], record)
            states[place][name] = result.state
            refused |= bool(result.refused)
            found.decisions[name].append(_encode([decision.event for decision in result.decisions]))
        found.refused += refused
    found.stale = sum(state[groups.NAME].counts.stale for state in states)
    return found


def measure(rollouts: int, tasks: int, slots: int, counts: Sequence[int]) -> dict[str, Any]:
    """Return how far the decisions of each number of partitions differ from one partition's."""
    config, task_list = parse({"env": {"slots": slots}}), task_set(tasks)
    circle = SimulatedCircle(config, task_list, ODDS).play_rounds(rollouts)
    log = circle.logs[trajectories.TOPIC.name].records
    one = apply_partitioned(config, task_list, log, 1)
    return {
        "trajectories": len(log),
        "tasks": tasks,
        "horizon": Limits.of(config).horizon,
        "groups": sum(made != b"[]" for made in one.decisions[groups.NAME]),
        "stale": one.stale,
        "partitions": {str(count): compare(one, apply_partitioned(config, task_list, log, count)) for count in counts},
    }


def compare(one: Applied, other: Applied) -> dict[str, int]:
    """Return the trajectories whose decisions differ, by agent, and what else differs."""
    differing = {
        name: sum(here != there for here, there in zip(of_one, other.decisions[name], strict=True))
        for name, of_one in one.decisions.items()
    }
    return {**differing, "refused": other.refused, "stale": other.stale, "largest_jump": other.jump}
