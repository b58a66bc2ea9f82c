"""Prints the digests of decisions that this Python makes: of each recipe in a circle in memory, and of replays.

``python -m tests.unit.curation.decisions`` runs on each supported Python. A sum of floats raises TypeError meanwhile.
"""

import builtins
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.curation_world import Odds, SimulatedCircle
from console.bundles.replay import replay
from console.runs.bundle import Bundle
from dart_streams import stateless_random
from dart_streams.config.recipes import known_recipes
from plugins.recipes.tests.agents import recipe_config, task_set
from topics.trajectories import Trajectory

ROUNDS = 300
BUNDLES = Path(__file__).parents[1] / "golden"

sum_of = builtins.sum


class PartialCircle(SimulatedCircle):
    """A circle in which partial credit is any share, so that sums of rewards have to be rounded."""

    def publish(self, topic: str, record_id: str, event: object) -> None:
        """Append an event to a topic."""
        if isinstance(event, Trajectory) and event.reward == 0.5:
            event = msgspec.structs.replace(event, reward=stateless_random.share("credit", event.order_id))
        super().publish(topic, record_id, event)


def sum_of_integers(values: Iterable[Any], start: int = 0) -> int:
    """Return the sum of integers; raise TypeError for other numbers."""
    found = list(values)
    if not all(isinstance(value, int) for value in found):
        raise TypeError("decisions add floats by portable_math.sum_in_order: sum depends on the version of Python")
    return sum_of(found, start)


def digests() -> dict[str, dict[str, str]]:
    """Return the digests of the decisions: by recipe and agent, and by bundle."""
    found = {}
    for name in known_recipes():
        config = recipe_config(name)
        circle = PartialCircle(config, task_set(config), Odds(faults=0.02, partial=0.5, lift=0.002)).play_rounds(ROUNDS)
        found[name] = {agent: state.progress.digest for agent, state in circle.states.items()}
    for file in sorted(BUNDLES.glob("*.dart")):
        outcome = replay(Bundle(file))
        found[file.name] = {"equal": str(outcome.equal)} | {one.agent: str(one.rounded) for one in outcome.agents}
    return found


if __name__ == "__main__":
    builtins.sum = sum_of_integers  # type: ignore[assignment]
    sys.stdout.write(json.dumps(digests()))
