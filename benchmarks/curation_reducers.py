"""How fast the four reducers are, and whether their states stay small.

``dart-streams bench reducers`` plays the circle in memory and prints JSON: for each agent the events it applied a
second of CPU time, and the largest and the last size of its state (bytes, as in a snapshot) of 20 looks on the way; of
all states together the largest size, and the slope over the second half, in bytes a finished group.
"""

import time
from statistics import linear_regression
from typing import Any

import msgspec

from benchmarks.curation_world import Odds, task_set
from benchmarks.in_memory_circle import InMemoryCircle, Written
from dart_streams.config import parse
from dart_streams.curation.reducer import Agent

PARTS = 20
GONE = Written("", None)


class TimedCircle(InMemoryCircle):
    """A circle that notes how long each agent worked, in seconds of CPU time, and on how many events."""

    def __init__(self, *args: Any) -> None:
        self.spent = dict.fromkeys(("difficulty", "budget", "groups", "dispatch"), 0.0)
        self.applied = dict.fromkeys(self.spent, 0)
        self.forgotten: dict[str, int] = {}
        super().__init__(*args)

    def deliver(self, agent: Agent, topic: str, offset: int) -> int:
        """Apply one record, timed."""
        started = time.thread_time()
        decided = super().deliver(agent, topic, offset)
        self.spent[agent.name] += time.thread_time() - started
        self.applied[agent.name] += 1
        return decided

    def forget(self) -> None:
        """Drop the records that everyone has read; what is measured is the agents' memory, not the logs'."""
        for topic, log in self.logs.items():
            for offset in range(self.forgotten.get(topic, 0), len(log)):
                log[offset] = GONE
            self.forgotten[topic] = len(log)


def measure(trajectories: int, tasks: int, slots: int) -> dict[str, Any]:
    """Play so many rollouts and return the figures of each agent."""
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
        circle.forget()
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
