"""Writes the workload of a bundle: ``dart-streams bench workload BUNDLE -o FOLDER``."""

from collections.abc import Iterator
from pathlib import Path

import tomli_w

from benchmarks.logged import LoggedEvent
from benchmarks.observed import pages, tables, times
from dart_streams.history.bundle import Bundle
from dart_streams.history.bundle_inputs import config_of, event_of
from topics import Topic, observations, trained, weights_serving


def write(path: Path, folder: Path, time_scale: float) -> None:
    """Write ``workload.toml`` and ``tasks.toml``; raise UserError if the bundle has no training episodes."""
    bundle = Bundle(path)
    config = config_of(bundle)
    seen = times(records(bundle, observations.TOPIC))
    found = tables(
        seen,
        records(bundle, trained.TOPIC),
        records(bundle, weights_serving.TOPIC),
        config.env.selected.call_timeout_s,
        config.workload.time_scale if config.workload else 1.0,
        time_scale,
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "workload.toml").write_text(tomli_w.dumps(found))
    (folder / "tasks.toml").write_text(tomli_w.dumps(pages(seen)))


def records(bundle: Bundle, topic: Topic) -> Iterator[LoggedEvent]:
    """Yield a topic's events with the time at which each was written."""
    for kept in bundle.records(topic.name):
        yield LoggedEvent(kept.at_ms, event_of(bundle, topic.name, kept))
