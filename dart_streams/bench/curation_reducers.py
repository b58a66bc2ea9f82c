"""How fast the four reducers are, and whether their states stay small.

``python -m dart_streams.bench.curation_reducers`` plays the circle in memory and prints JSON: for each agent the events
it applied a second of CPU time, and the size of its state (bytes, as in a snapshot) at each quarter of the way.
"""

import argparse
import json
import sys
import time
from typing import Any

import msgspec

from dart_streams.bench.curation_circle import Circle
from dart_streams.bench.curation_world import Odds, task_set
from dart_streams.config import parse
from dart_streams.curation.decisions import Agent

PARTS = 4


class TimedCircle(Circle):
    """A circle that notes how long each agent worked, in seconds of CPU time, and on how many events."""

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
    """Play so many rollouts and return the figures of each agent."""
    config = parse({"env": {"slots": slots}})
    circle = TimedCircle(config, task_set(tasks), Odds(faults=0.02, partial=0.05))
    circle.settle()
    sizes: dict[str, list[int]] = {name: [] for name in circle.agents}
    for done in range(1, trajectories + 1):
        circle.end_one()
        circle.settle()
        circle.train()
        if done % max(1, trajectories // PARTS) == 0:
            for name, state in circle.states.items():
                sizes[name].append(len(msgspec.msgpack.encode(state)))
    return {
        "trajectories": trajectories,
        "tasks": tasks,
        "slots": slots,
        "groups": circle.states["dispatch"].next_group,
        "agents": {
            name: {
                "events": circle.applied[name],
                "events_per_s": round(circle.applied[name] / circle.spent[name]),
                "state_bytes": sizes[name],
            }
            for name in circle.agents
        },
    }


def main() -> None:
    """Measure as the command line says and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=50_000)
    parser.add_argument("--tasks", type=int, default=1_000)
    parser.add_argument("--slots", type=int, default=64)
    asked = parser.parse_args()
    json.dump(measure(asked.trajectories, asked.tasks, asked.slots), sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
