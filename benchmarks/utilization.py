"""Activity of slots, rollout workers and trainer over time, and its metrics. Pure.

Simulations and logs of real runs fill the same account. Times are simulated seconds.
"""

from typing import NamedTuple

import msgspec

from dart_streams.errors import UserError
from dart_streams.portable_math import interpolate_quantile


class OptimizerStep(NamedTuple):
    """An optimizer step: end, start, environment steps taken, staleness of the oldest token."""

    at: float
    began: float
    steps: int
    staleness: int


class ServedRequest(NamedTuple):
    """An answered request: when, its wait for a place, its time in all, and whether another worker answered before.

    ``moved`` is None where that is not known.
    """

    at: float
    waited: float
    took: float
    moved: bool | None = None


class Account(msgspec.Struct):
    """Activity of a run.

    ``episodes`` are (start, end), ``actions`` execution times, ``generated`` (worker, start, end), ``finished`` (time,
    steps) of rewarded trajectories. ``left_out`` counts trajectories, and their steps, too stale at their group's
    close.
    """

    slots: int
    workers: int
    places: int
    episodes: list[tuple[float, float]] = []
    actions: list[float] = []
    generated: list[tuple[int, float, float]] = []
    requests: list[ServedRequest] = []
    finished: list[tuple[float, int]] = []
    trained: list[OptimizerStep] = []
    left_out: tuple[int, int] | None = None


class UtilizationMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics of a mode between two versions, rates per simulated minute.

    ``env_utilisation`` is the share of slot time with an episode, ``rollout_utilisation`` of worker time with a
    request, ``rollout_occupancy`` of request places in use, ``trainer_utilisation`` of time in optimizer steps.
    ``wasted`` is the share of steps never trained on. ``stale_share`` and ``stale_length`` are of trajectories too
    stale at their group's close: their share, and their relative length. ``request_wait_s`` (mean) and
    ``request_wait_p99_s`` are what requests waited for a place, ``request_s`` their mean time with the generation;
    ``moved_share`` is of requests whose trajectory had another worker before.
    """

    env_utilisation: float
    rollout_utilisation: float
    rollout_occupancy: float
    trainer_utilisation: float
    actions_per_min: float
    trained_steps_per_min: float
    optimizer_steps_per_min: float
    staleness_max: int
    staleness_mean: float
    wasted: float
    minutes: float
    stale_share: float | None = None
    stale_length: float | None = None
    request_wait_s: float | None = None
    request_wait_p99_s: float | None = None
    request_s: float | None = None
    moved_share: float | None = None


def utilization_metrics(account: Account, after: float) -> UtilizationMetrics:
    """Return the metrics from the first version ``after`` this time to the last; raise UserError for fewer than two."""
    made = [step for step in account.trained if step.at >= after]
    if len(made) < 2:
        raise UserError(
            f"{len(made)} optimizer steps after the first {after / 60:g} simulated minutes are too few: run for longer"
        )
    start, end = made[0].at, made[-1].at
    lasted, taken = end - start, made[1:]
    steps = sum(step.steps for step in taken)
    ages = [step.staleness for step in taken]
    played = sum(count for at, count in account.finished if start < at <= end)
    generating = covered_time(account.generated, start, end)
    stale_share, stale_length = staleness_bias(account)
    return UtilizationMetrics(
        env_utilisation=overlap(account.episodes, start, end) / (account.slots * lasted),
        rollout_utilisation=generating / (account.workers * lasted),
        rollout_occupancy=overlap([(a, b) for _, a, b in account.generated], start, end)
        / (account.workers * account.places * lasted),
        trainer_utilisation=sum(step.at - step.began for step in taken) / lasted,
        actions_per_min=60 * sum(start < at <= end for at in account.actions) / lasted,
        trained_steps_per_min=60 * steps / lasted,
        optimizer_steps_per_min=60 * len(taken) / lasted,
        staleness_max=max(ages),
        staleness_mean=sum(ages) / len(ages),
        wasted=max(0.0, 1 - steps / played) if played else 0.0,
        minutes=lasted / 60,
        stale_share=stale_share,
        stale_length=stale_length,
        **request_metrics([request for request in account.requests if start < request.at <= end]),
    )


def request_metrics(requests: list[ServedRequest]) -> dict[str, float | None]:
    """Return the metrics of answered requests, none without any."""
    if not requests:
        return {}
    waits = sorted(request.waited for request in requests)
    known = [request.moved for request in requests if request.moved is not None]
    return {
        "request_wait_s": sum(waits) / len(waits),
        "request_wait_p99_s": interpolate_quantile(waits, 0.99),
        "request_s": sum(request.took for request in requests) / len(requests),
        "moved_share": sum(known) / len(known) if known else None,
    }


def staleness_bias(account: Account) -> tuple[float | None, float | None]:
    """Return share and relative length of rewarded trajectories that were too stale."""
    if account.left_out is None or not account.finished:
        return None, None
    trajectories, steps = account.left_out
    mean = sum(count for _, count in account.finished) / len(account.finished)
    return trajectories / len(account.finished), steps / trajectories / mean if trajectories and mean else None


def overlap(spans: list[tuple[float, float]], start: float, end: float) -> float:
    """Return the total length of spans between ``start`` and ``end``."""
    return sum(max(0.0, min(b, end) - max(a, start)) for a, b in spans)


def covered_time(spans: list[tuple[int, float, float]], start: float, end: float) -> float:
    """Return the time with at least one span between ``start`` and ``end``, summed over workers."""
    reached: dict[int, float] = {}
    total = 0.0
    for worker, a, b in sorted(spans, key=lambda span: span[1]):
        begin = max(a, start, reached.get(worker, start))
        stop = min(b, end)
        if stop > begin:
            total += stop - begin
        reached[worker] = max(reached.get(worker, start), b)
    return total


def ratio_to(value: float, baseline: float, digits: int = 2) -> float:
    """Return ``value / baseline``; raise ValueError unless the baseline is positive."""
    if not baseline > 0:
        raise ValueError(f"a baseline of {baseline:g} has no ratio")
    return round(value / baseline, digits)
