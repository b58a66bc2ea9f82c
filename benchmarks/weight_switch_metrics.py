"""Metrics of weight switches. Pure."""

import itertools
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks.utilization import ratio_to


class SwitchRecord(NamedTuple):
    """A switch in place: no generation for ``pause_ms`` before ``since_ms`` (epoch ms)."""

    worker_id: str
    version: int
    since_ms: int
    pause_ms: float


class Answer(NamedTuple):
    """A reply at ``at_ms``: tokens, number of versions, latency."""

    at_ms: int
    worker_id: str
    tokens: int
    versions: int
    took_ms: float


class Window(NamedTuple):
    """Time span (epoch ms) under load, with or without a weight switch."""

    begin_ms: int
    end_ms: int
    switching: bool


class Records(NamedTuple):
    """Records of one run; ``failed`` requests had an error or no answer in time."""

    workers: int
    switches: Sequence[SwitchRecord]
    restarts_ms: Sequence[float]
    answers: Sequence[Answer]
    windows: Sequence[Window]
    failed: int


def switch_metrics(records: Records) -> dict[str, Any]:
    """Return the benchmark's JSON."""
    pauses = [switch.pause_ms for switch in records.switches]
    pause_ms, restart_ms = statistics.median(pauses), statistics.median(records.restarts_ms)
    steady, switching = (tokens_per_s(records, state) for state in (False, True))
    took_ms = sorted(answer.took_ms for answer in records.answers)
    return {
        "pause_ms": {"p50": round(pause_ms, 1), "max": round(max(pauses), 1)},
        "restart_ms": {"p50": round(restart_ms)},
        "ratio": ratio_to(restart_ms, pause_ms, 0),
        "failed": records.failed,
        "capacity_min": capacity_min(records.switches, records.workers),
        "workers": records.workers,
        "throughput_lost_pct": round(100 * (1 - switching / steady), 1),
        "switches": len(pauses),
        "restarts": len(records.restarts_ms),
        "requests": len(records.answers) + records.failed,
        "of_two_versions": sum(answer.versions > 1 for answer in records.answers),
        "answer_ms": {"p50": round(statistics.median(took_ms), 1), "max": round(took_ms[-1], 1)},
        "tokens_per_s": {"steady": round(steady, 1), "switching": round(switching, 1)},
    }


def capacity_min(switches: Sequence[SwitchRecord], workers: int) -> float:
    """Return the minimum share of workers that generated at any moment."""
    # At the same millisecond an end counts before a beginning: who was waited for has announced itself by then.
    edges = sorted(
        itertools.chain.from_iterable(
            ((switch.since_ms - switch.pause_ms, 1), (float(switch.since_ms), -1)) for switch in switches
        )
    )
    standing = itertools.accumulate(change for _, change in edges)
    return round((workers - max(standing, default=0)) / workers, 3)


def tokens_per_s(records: Records, switching: bool) -> float:
    """Return the throughput over all windows of one kind."""
    windows = [window for window in records.windows if window.switching == switching]
    tokens = sum(
        answer.tokens
        for window in windows
        for answer in records.answers
        if window.begin_ms <= answer.at_ms < window.end_ms
    )
    return tokens * 1000 / sum(window.end_ms - window.begin_ms for window in windows)
