"""Synthetic bundles of any size, deterministic, for tests and for benchmarks of replay."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

import topics
from benchmarks.curation_world import Odds, SimulatedCircle, task_set
from console.bundles.bundle_inputs import CONFIG, TASKS
from console.runs.bundle import BundleRecord, BundleSection, Manifest, Writer
from console.runs.run_folder import without_nulls
from dart_streams.bus.codec import encode
from dart_streams.config import Config, parse
from dart_streams.config.tasks import TaskSet
from dart_streams.curation.in_memory import Written
from dart_streams.curation.reducer import Agent, InputRecord, ReducerResult
from topics import curation_log

MADE_MS = 1_700_000_000_000


class LoggingCircle(SimulatedCircle):
    """A circle that also keeps the curation log."""

    def apply(self, agent: Agent, record: InputRecord) -> ReducerResult:
        """Apply one record and log it."""
        result = super().apply(agent, record)
        if result.applied is not None:
            self.publish(curation_log.TOPIC.name, f"{agent.name}/{record.topic}/0/{record.offset}", result.applied)
        return result


def play_rollouts(config: Config, tasks: TaskSet, trajectories: int, odds: Odds, seed: int = 0) -> LoggingCircle:
    """Return a circle in which N rollouts have ended, in order of their start."""
    circle = LoggingCircle(config, tasks, odds, seed)
    circle.settle()
    for _ in range(trajectories):
        circle.end_one(0)
        circle.settle()
        circle.train()
        circle.settle()
    return circle


def write(path: Path, config: Config, tasks: TaskSet, circle: LoggingCircle) -> list[BundleSection]:
    """Write a circle's logs as a bundle."""
    logs = [topic for topic in topics.ALL if topic.name in circle.logs]
    manifest = Manifest(
        run=config.bus.run,
        prefix=config.bus.prefix,
        captured_ms=MADE_MS,
        schemas={topic.name: topic.version for topic in logs},
    )
    with Writer(path, manifest) as bundle:
        bundle.text(CONFIG, tomli_w.dumps(without_nulls(msgspec.to_builtins(config))))
        bundle.text(TASKS, tomli_w.dumps({"pages": msgspec.to_builtins(tasks.pages)}))
        for topic in logs:
            bundle.records(topic.name, bundle_records(topic, circle.logs[topic.name]))
    return bundle.sections


def make(path: Path, trajectories: int, tasks: int, slots: int) -> dict[str, Any]:
    """Write a bundle of N rollouts; return its size."""
    config, set_ = parse({"env": {"slots": slots}}), task_set(tasks)
    circle = play_rollouts(config, set_, trajectories, Odds(faults=0.02, partial=0.05, lift=0.0005))
    sections = write(path, config, set_, circle)
    return {
        "records": sum(section.items for section in sections if section.kind == "records"),
        "mb": round(path.stat().st_size / 1e6, 2),
    }


def bundle_records(topic: topics.Topic, log: Sequence[Written]) -> Iterator[BundleRecord]:
    """Yield a log as records."""
    for offset, written in enumerate(log):
        record = encode(topic, written.event, (), written.id or f"{topic.name}-{offset}")
        yield BundleRecord(0, offset, MADE_MS + offset, record.key, record.value, list(record.headers))
