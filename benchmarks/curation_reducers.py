"""Throughput and state sizes of the four reducers: ``dart-streams bench reducers``.

Plays the circle in memory and reports events per CPU second by agent, the largest and last snapshot sizes (bytes) of 20
samples, and the growth over the second half, in bytes per finished group.
"""

import time
from statistics import linear_regression
from typing import Any

import msgspec

from benchmarks.curation_world import Odds, SimulatedCircle, task_set
from dart_streams.config import parse
from dart_streams.curation.reducer import Agent

PARTS = 20


class TimedCircle(SimulatedCircle):
    """A circle that measures CPU seconds and events of each agent."""

    def __init__(self, *args: Any) -> None:
        self.spent = dict.fromkeys(("difficulty", "budget", "groups", "dispatch"), 0.0)
        self.applied = dict.fromkeys(self.spent, 0)
        super().__init__(*args)

    def deliver(self, agent: Agent, topic: str, offset: int) -> int:
        """Apply one record, timed."""
        started = time.thread_time()
        decided = super().deliver(agent, topic, offset)
        self.spent[agent.name] += time.thread_time() - started
        self.applied[agent.name] += 1
        return decided


def measure(trajectories: int, tasks: int, slots: int) -> dict[str, Any]:
    """Play N rollouts; return the metrics of each agent."""
    config = parse({"env": {"slots": slots}})
    circle = TimedCircle(config, task_set(tasks), Odds(faults=0.02, partial=0.05))
    circle.settle()
    sizes: dict[str, list[int]] = {name: [] for name in circle.agents}
    finished: list[int] = []
    for done in range(1, trajectories + 1):
        circle.end_one()
        circle.settle()
        circle.train()
        circle.settle()
        circle.delete_read()
        if done % max(1, trajectories // PARTS) == 0:
            for name, state in circle.states.items():
                sizes[name].append(len(msgspec.msgpack.encode(state)))
            finished.append(circle.states["dispatch"].next_group)
    whole, half = [sum(parts) for parts in zip(*sizes.values(), strict=True)], len(finished) // 2
    return {
        "trajectories": trajectories,
        "tasks": tasks,
        "slots": slots,
        "groups": circle.states["dispatch"].next_group,
        "state_bytes_most": max(whole),
        "state_bytes_a_group": round(linear_regression(finished[half:], whole[half:]).slope, 3),
        "agents": {
            name: {
                "events": circle.applied[name],
                "events_per_s": round(circle.applied[name] / circle.spent[name]),
                "state_bytes": {"most": max(sizes[name]), "last": sizes[name][-1]},
            }
            for name in circle.agents
        },
    }
