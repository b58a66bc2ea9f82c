"""The figures of a report, each with where it comes from. Pure.

The keys without a nested table are what other programs read; the rest is for the page.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

from dart_streams.history import evaluation
from dart_streams.history.evaluation import EvaluationResult
from dart_streams.history.run_state import SLICE_MS
from dart_streams.history.statistics import Rate, difference, mean, quantile
from dart_streams.telemetry import names
from dart_streams.views.report_inputs import ProcessUsage, ReportInputs
from topics.values import OutcomeKind

GAP = "same_version_mismatch"


def report(materials: ReportInputs) -> dict[str, Any]:
    """Return all figures, ready to be written as JSON."""
    before, after = evaluations(materials)
    return {
        **success(before, after),
        **volume(materials),
        "env_utilisation": rounded(utilisation(materials)),
        "slot_time": slot_time(materials),
        "staleness": staleness(materials),
        "weight_switch_ms": switch_pauses(materials),
        "versions_served": len({switch.version for switch in materials.progress.switches}),
        "failed_loads": len(materials.progress.failed_loads),
        "requests": requests(materials),
        "overhead_ms": quantiles(materials, names.ENV_OVERHEAD_MS),
        "step_ms": step_times(materials),
        "lost": len(materials.progress.lost(materials.lags)),
        "open": len(materials.progress.still_open(materials.lags)),
        "trajectories": trajectories(materials),
        "groups": {"curated": len(materials.progress.groups), "consumed": materials.progress.groups_consumed},
        "trainer": trainer(materials),
        "cpu_s": cpu(materials),
        "wall_s": wall(materials),
        "outcome": materials.journal.outcome,
    }


def evaluations(materials: ReportInputs) -> tuple[EvaluationResult | None, EvaluationResult | None]:
    """Return the evaluations before and after, from ``trajectories``; None where the run did not come so far."""
    versions = (materials.journal.before_version, materials.journal.after_version)
    results = [
        evaluation.read(materials.config, materials.tasks, materials.progress, version) if version is not None else None
        for version in versions
    ]
    return results[0], results[1]


def success(before: EvaluationResult | None, after: EvaluationResult | None) -> dict[str, Any]:
    """Return held-out success, whole and by page, with 95 % intervals."""
    pages = sorted({page for result in (before, after) if result for page in result.per_page})
    figures: dict[str, Any] = {
        "success_before": before and rounded(before.overall.rate),
        "success_after": after and rounded(after.overall.rate),
        "per_task": {
            page: {
                name: rate_fields(result.per_page.get(page)) if result else None
                for name, result in (("before", before), ("after", after))
            }
            for page in pages
        },
        "evaluation": {
            "before": before and {**rate_fields(before.overall), "version": before.version, "faults": before.faults},
            "after": after and {**rate_fields(after.overall), "version": after.version, "faults": after.faults},
        },
    }
    if before and after:
        change, low, high = difference(before.overall, after.overall)
        figures["evaluation"]["change"] = {"mean": rounded(change), "low": rounded(low), "high": rounded(high)}
    return figures


def rate_fields(rate: Rate | None) -> dict[str, Any]:
    """Return a rate as plain values."""
    if rate is None:
        return {}
    return {
        "rate": rounded(rate.rate),
        "low": rounded(rate.low),
        "high": rounded(rate.high),
        "episodes": rate.trials,
    }


def volume(materials: ReportInputs) -> dict[str, Any]:
    """Return how much was done: optimiser steps from ``weights``, the rest from ``trajectories``, ``observations``."""
    progress, circle = materials.progress, materials.circle
    inside = range(circle.started_ms // SLICE_MS + 1, (circle.ended_ms or 0) // SLICE_MS)
    steps = sum(progress.slices[number].steps for number in inside if number in progress.slices)
    finished = progress.finished.values()
    return {
        "train_steps": max((version.event.train_step for version in progress.versions.values()), default=0),
        "episodes": sum(trajectory.purpose == "train" for trajectory in finished),
        "env_steps": sum(trajectory.steps for trajectory in finished if trajectory.purpose == "train"),
        "env_steps_per_s": rounded(steps / (len(inside) * SLICE_MS / 1000), 2) if inside else None,
        "all_purposes": {
            "episodes": dict(Counter(trajectory.purpose for trajectory in finished)),
            "env_steps": progress.steps,
        },
    }


def slot_time(materials: ReportInputs) -> dict[str, float]:
    """Return the shares of slot time by what the slots did in the training phase, from the env workers' metrics."""
    circle = materials.circle
    spent = materials.readings.by_attribute(names.ENV_SLOT_MS, "state", circle.started_ms, circle.ended_ms or 0)
    total = sum(spent.values())
    return {state: rounded(value / total) or 0.0 for state, value in spent.items()} if total else {}


def utilisation(materials: ReportInputs) -> float | None:
    """Return the share of slot time with an episode under way, by the metrics or else by ``trajectories``."""
    if shares := slot_time(materials):
        return 1.0 - shares.get("idle", 0.0)
    if not materials.circle_s:
        return None
    circle = materials.circle
    inside = range(circle.started_ms // SLICE_MS + 1, (circle.ended_ms or 0) // SLICE_MS)
    busy_ms = sum(part.busy_ms for number, part in materials.progress.slices.items() if number in inside)
    return min(1.0, busy_ms / (len(inside) * SLICE_MS * materials.slots)) if inside else None


def staleness(materials: ReportInputs) -> dict[str, Any]:
    """Return how many versions old trajectories were when trained on: the trainer's rows against ``curated``."""
    ages = [age for row in materials.trained for age in ages_of(materials, row)]
    return {"mean": rounded(mean(ages)), "max": max(ages, default=None)}


def ages_of(materials: ReportInputs, row: dict[str, Any]) -> list[int]:
    """Return the age of each trajectory of an optimiser step: the version it trained less the oldest that acted.

    What the experience pool lent to a group is old on purpose and does not count, also where the same trajectory was
    trained on before in the group it was made for.
    """
    groups = [materials.progress.groups[name][0] for name in row["group_ids"] if name in materials.progress.groups]
    return [
        max(0, trained_version(row) - member.version_min)
        for group in groups
        for member in group.members
        if member.source == "online" and member.version_min is not None
    ]


def trained_version(row: dict[str, Any]) -> int:
    """Return the version whose weights an optimiser step started from: the row has the one that it made."""
    return int(row["version"]) - 1


def switch_pauses(materials: ReportInputs) -> dict[str, Any]:
    """Return how long generation stood still for a switch, from ``weights-serving``."""
    pauses = [switch.pause_ms for switch in materials.progress.switches]
    return {"p50": rounded(quantile(pauses, 0.5), 1), "max": rounded(max(pauses, default=None), 1)}


def requests(materials: ReportInputs) -> dict[str, int]:
    """Return what became of action requests, from the env workers' counters."""
    counted = {
        "sent": names.ENV_REQUESTS_SENT,
        "answered": names.ENV_REQUESTS_ANSWERED,
        "timed_out": names.ENV_REQUESTS_TIMED_OUT,
    }
    return {key: int(materials.readings.counter(name)) for key, name in counted.items()}


def quantiles(materials: ReportInputs, name: str) -> dict[str, Any]:
    """Return the median and the 99th percentile of a histogram over the training phase."""
    circle = materials.circle
    values = materials.readings.distribution(name, circle.started_ms, circle.ended_ms or 0)
    if values is None:
        return {"p50": None, "p99": None, "mean": None}
    return {
        "p50": rounded(values.quantile(0.5), 1),
        "p99": rounded(values.quantile(0.99), 1),
        "mean": rounded(values.mean, 1),
    }


def step_times(materials: ReportInputs) -> dict[str, Any]:
    """Return where an environment step's time goes, by the metrics of env and rollout workers."""
    parts = {
        "queue": names.ROLLOUT_QUEUE_MS,
        "generate": names.ROLLOUT_GENERATE_MS,
        "overhead": names.ENV_OVERHEAD_MS,
        "execute": names.ENV_EXECUTE_MS,
        "reset": names.ENV_RESET_MS,
        "request": names.ENV_REQUEST_MS,
    }
    return {part: quantiles(materials, name) for part, name in parts.items()}


def trajectories(materials: ReportInputs) -> dict[str, Any]:
    """Return what became of training trajectories, from ``trajectories`` and the trainer's rows."""
    train = {t.trajectory_id: t for t in materials.progress.finished.values() if t.purpose == "train"}
    used = {identity for row in materials.trained for identity in row["trajectory_ids"]}
    outcomes: Counter[OutcomeKind] = Counter(t.outcome for t in train.values())
    return {
        "finished": len(train),
        "trained": len(used & train.keys()),
        "dropped": len(train.keys() - used),
        "by_outcome": dict(outcomes.most_common()),
        "from_pool": len(used - train.keys()),
    }


def trainer(materials: ReportInputs) -> dict[str, Any]:
    """Return how the trainer fared, from its rows: the share of training time it did nothing, and its figures.

    ``mismatch`` is the gap between the engine's and the trainer's log-probabilities for the same weights (nats a
    token); ``drift`` the gap to the weights that were trained.
    """
    circle = materials.circle
    inside = [
        row["metrics"] for row in materials.trained if circle.started_ms <= row["at_ms"] <= (circle.ended_ms or 0)
    ]
    busy_ms = sum(row.get(part, 0.0) for row in inside for part in ("train_ms", "publish_ms", "checkpoint_ms"))
    return {
        "idle_share": rounded(1 - busy_ms / (materials.circle_s * 1000)) if busy_ms and materials.circle_s else None,
        "train_ms": rounded(quantile(column(inside, "train_ms"), 0.5), 1),
        "publish_ms": rounded(quantile(column(inside, "publish_ms"), 0.5), 1),
        "mismatch": spread(column([row for row in inside if row.get("same_version_tokens")], GAP)),
        "drift": spread(column([row for row in inside if not row.get("supervised")], "mismatch")),
        "stale_groups": int(sum(column(inside, "stale_groups"))),
    }


def column(rows: list[dict[str, float]], name: str) -> list[float]:
    """Return the values of one figure in the rows that have it."""
    return [row[name] for row in rows if name in row]


def spread(values: list[float]) -> dict[str, float | None]:
    """Return mean and largest of some values."""
    return {"mean": rounded(mean(values), 5), "max": rounded(max(values, default=None), 5)}


def cpu(materials: ReportInputs) -> dict[str, float]:
    """Return CPU seconds by process tree in the training phase, from the supervisor's samples."""
    circle = materials.circle
    return spent(materials.usage, circle.started_ms, circle.ended_ms or 0)


def spent(
    usage: Iterable[ProcessUsage], start_ms: int, end_ms: int, of: Callable[[ProcessUsage], float] = attrgetter("cpu_s")
) -> dict[str, float]:
    """Return CPU seconds by process between two times: all of its tree's, or what ``of`` reads of a sample."""
    known: dict[str, tuple[float, float]] = {}
    for sample in usage:
        if start_ms <= sample.at_ms <= end_ms:
            cpu_s = of(sample)
            first, _ = known.get(sample.process, (cpu_s, 0.0))
            known[sample.process] = (min(first, cpu_s), cpu_s)
    return {name: round(last - first, 1) for name, (first, last) in known.items()}


def by_kind(by_process: dict[str, float]) -> dict[str, float]:
    """Add up what processes of a kind have: ``env-0`` and ``env-1`` are ``env``."""
    found: defaultdict[str, float] = defaultdict(float)
    for name, value in by_process.items():
        found[re.sub(r"-\d+$", "", name)] += value
    return {name: round(value, 1) for name, value in sorted(found.items())}


def wall(materials: ReportInputs) -> dict[str, float]:
    """Return how long each phase took, in seconds, from the journal; phases of a resumed run add up."""
    result: dict[str, float] = {}
    for phase in materials.journal.phases:
        if phase.ended_ms is not None:
            result[phase.name] = round(result.get(phase.name, 0.0) + (phase.ended_ms - phase.started_ms) / 1000, 2)
    return result


def rounded(value: float | None, digits: int = 4) -> float | None:
    """Round for the reader; None stays."""
    return None if value is None else round(value, digits)
