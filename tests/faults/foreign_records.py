"""Well-formed records of foreign programs, put between those of a circle in memory with any recipe.

``python -m tests.faults.foreign_records --minutes 10`` plays circle after circle. A finding is an error, a record that
takes a second of CPU, or a circle that trains no more once the foreign records end.
"""

import argparse
import json
import random
import sys
import time
import traceback
from typing import Any

import msgspec

from benchmarks.curation_world import Odds, play
from dart_streams.config.recipes import known_recipes
from dart_streams.config.tasks import TaskSet
from dart_streams.curation.reducer import Agent, InputRecord, ReducerResult
from plugins.recipes.tests.agents import recipe_config, task_set
from tests.unit.curation.test_lost_orders import LossyCircle, goes_on, heals
from topics import feedback, tasks, trajectories
from topics.feedback import Feedback
from topics.tasks import ProposedTask
from topics.weights import WeightVersion

LONGEST_S = 1.0
GROUPS, FOREIGN, MOST_STEPS = 12, 60, 1000
NUMBERS = (0, 1, 2, 255, 999, 2**16, 10**6, 10**7, 2**31 - 1, 10**9, 10**12, 10**18)
TEXTS = ("", "x", "x" * 510, "x" * 512, "g000000/0/0", "g999999999999999999/0/0", "a/b#1", "success")
SAID = (
    Feedback(feedback_id="f", task_id="t", author="a", at_ms=1, kind="judgement", trajectory_id="t", judgement="good"),
    Feedback(
        feedback_id="f", task_id="t", author="a", at_ms=1, kind="correction", trajectory_id="t", step=0, action="wait()"
    ),
)
PROPOSED = ProposedTask(task_id="simulated/made#1", max_steps=5, maker="m")


class ForeignCircle(LossyCircle):
    """A circle that notes what is wrong with how a record is applied."""

    wrong: list[str]

    def apply(self, agent: Agent, record: InputRecord) -> ReducerResult:
        """Apply a record, and note an error, a long time, and a decision that can't be logged."""
        began = time.process_time()
        result = super().apply(agent, record)
        if (took := time.process_time() - began) > LONGEST_S:
            self.wrong.append(f"{agent.name} took {took:.1f} s for {record.event}")
        if result.refused.startswith("it can't be applied"):
            self.wrong.append(f"{agent.name}: {result.refused} {record.event}")
        if result.applied is not None:
            msgspec.convert(msgspec.to_builtins(result.applied), type(result.applied))
        return result


def mutated(event: msgspec.Struct, draw: random.Random) -> msgspec.Struct | None:
    """Return an event with some other values, None if the contract refuses it."""
    made = msgspec.to_builtins(event)
    for _ in range(draw.choice((1, 1, 2, 3))):
        place: Any = made
        name: Any = draw.choice([field.name for field in msgspec.structs.fields(event)])
        while (inside := place.get(name) if isinstance(place, dict) else place[name]) and draw.random() < 0.8:
            if not isinstance(inside, dict | list):
                break
            place, name = inside, draw.choice([*inside] if isinstance(inside, dict) else range(len(inside)))
        place[name] = draw.choice((None, draw.choice(NUMBERS), draw.random(), draw.choice(TEXTS), []))
    try:
        return msgspec.convert(made, type(event))
    except msgspec.ValidationError:
        return None


def trainer_of(event: msgspec.Struct) -> object:
    """Return epoch and version of a weights record, nothing of others."""
    return (event.epoch, event.version) if isinstance(event, WeightVersion) else None


def findings(recipe: str, seed: int, mode: str = "rollout-wise") -> list[str]:
    """Return what is wrong with a circle of a recipe among foreign records that ``seed`` draws."""
    tables: dict[str, Any] = {"feedback": {"enabled": True}, "tasks": {"proposals": True}}
    config = recipe_config(recipe, curation={"dispatch": {"mode": mode}}, **tables)
    circle = ForeignCircle(config, TaskSet([*task_set(config).pages[:3]]), Odds(faults=0.1, partial=0.2), seed)
    circle.wrong = []
    draw = random.Random(seed)
    last = "none"
    try:
        goes_on(circle, GROUPS)
        known = [(name, written.event) for name, log in circle.logs.items() for written in log]
        known += [(feedback.TOPIC.name, event) for event in SAID * 20] + [(tasks.TOPIC.name, PROPOSED)] * 20
        circle.publish(tasks.TOPIC.name, "proposed", PROPOSED)
        circle.settle()
        for number in range(FOREIGN):
            name, event = draw.choice(known)
            if name == trajectories.TOPIC.name and circle.running:
                order, version = draw.choice(circle.running)
                event = play(order, version, circle.odds, seed)
            # A version or an epoch of another trainer fences this one, which in a run starts anew and counts on.
            if (foreign := mutated(event, draw)) is not None and trainer_of(foreign) == trainer_of(event):
                last = f"{name} {foreign}"
                circle.publish(name, f"foreign-{number}", foreign)
                circle.running = [one for one in circle.running if one[0].max_steps < MOST_STEPS]
                circle.settle()
        heals(circle, 2 * GROUPS)
    except Exception as error:  # noqa: BLE001 - a finding
        circle.wrong.append(f"{error!r} after {last}: {traceback.format_exc(limit=-2)}")
    return circle.wrong


def main() -> None:
    """Play circles until the time is over, and print what was found as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    end, seed, found = time.monotonic() + 60 * given.minutes, given.seed, list[str]()
    recipes = known_recipes()
    while time.monotonic() < end and len(found) < 20:
        recipe = recipes[seed % len(recipes)]
        found += [f"{recipe} seed {seed}: {one[:600]}" for one in findings(recipe, seed)]
        seed += 1
    sys.stdout.write(json.dumps({"circles": seed - given.seed, "findings": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
