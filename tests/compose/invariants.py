"""The invariants of a finished run's topics, as JSON. Usage: ``invariants.py CONFIG``; exit code 1 if one is broken."""

import itertools
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dart_streams.bus.codec import decode
from dart_streams.config import Config, load
from dart_streams.history.run_log import headers_of, present_records
from topics import Topic, actions, curated, observations, trained, trajectories, weights


def events(config: Config, topic: Topic) -> Iterator[Any]:
    for record in present_records(config.bus, topic):
        yield decode(topic, record.value or b"", headers_of(record))


def is_whole(seen: set[int], steps: int) -> bool:
    """Whether the observations of an episode of so many steps are all there, from the one after the reset on."""
    return seen == set(range(len(seen))) and len(seen) > steps


def found(config: Config) -> dict[str, list[str]]:
    steps: dict[str, list[int]] = {}
    asked: set[str] = set()
    for seen in events(config, observations.TOPIC):
        steps.setdefault(seen.trajectory_id, []).append(seen.step)
        if seen.taken and seen.order.purpose != "demonstration":
            asked.add(seen.taken.request_id)
    finished = list(events(config, trajectories.TOPIC))
    versions = [(event.epoch, event.version) for event in events(config, weights.TOPIC)]
    steps_of = {event.train_step: event for event in events(config, trained.TOPIC)}
    used = Counter(name for step in steps_of.values() for name in step.group_ids)
    answered = {event.request_id for event in events(config, actions.TOPIC)}
    curated_groups = {event.group_id for event in events(config, curated.TOPIC)}
    return {
        "a finished trajectory lacks a step": [
            event.trajectory_id
            for event in finished
            if not is_whole(set(steps.get(event.trajectory_id, [])), event.steps)
        ],
        "versions go back": [f"{b} after {a}" for a, b in itertools.pairwise(versions) if b < a],
        "a group is trained on twice": [name for name, times in used.items() if times > 1],
        "a group is trained on that is not curated": sorted(used.keys() - curated_groups),
        "an action was taken that nobody gave": sorted(asked - answered),
    }


if __name__ == "__main__":
    broken = {rule: examples[:5] for rule, examples in found(load(Path(sys.argv[1]))).items() if examples}
    sys.stdout.write(json.dumps(broken) + "\n")
    sys.exit(bool(broken))
