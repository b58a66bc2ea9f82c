"""What slots, rollout workers and trainer did over a stretch of time, and the figures that are made of it. Pure.

The same account is filled by a simulation and from the log of a real run, so that one can be held against the other.
Times are seconds of the desktops' time.
"""

from typing import Literal, NamedTuple

import msgspec

from dart_streams.errors import UserError

SlotActivity = Literal["reset", "step", "wait", "evaluate", "hang"]


class SlotSpan(NamedTuple):
    """Slot ``slot`` was in ``state`` from ``start`` to ``end``; where a slot has no span it was idle."""

    slot: int
    state: SlotActivity
    start: float
    end: float


class OptimizerStep(NamedTuple):
    """An optimizer step that ended at ``at``: the environment steps it took, and how stale its oldest token was."""

    at: float
    began: float
    steps: int
    staleness: int


class Account(msgspec.Struct):
    """Everything that happened.

    ``episodes`` are (start, end), ``actions`` the times at which an action was executed, ``generated`` spans (rollout
    worker, start, end), and ``finished`` (time, steps) of trajectories that carry a reward. ``left_out`` counts the
    trajectories, and the steps in them, that were too old when their group closed; None where it is not known.
    """

    slots: int
    workers: int
    places: int
    episodes: list[tuple[float, float]] = []
    actions: list[float] = []
    generated: list[tuple[int, float, float]] = []
    finished: list[tuple[float, int]] = []
    trained: list[OptimizerStep] = []
    spans: list[SlotSpan] = []
    left_out: tuple[int, int] | None = None


class UtilizationMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """What a mode came to, between two versions.

    ``env_utilisation`` is the share of slot time with an episode under way, ``rollout_utilisation`` the share of the
    rollout workers' time in which at least one request was generated, as a device's own meter counts it;
    ``rollout_occupancy`` the share of their places in use, ``trainer_utilisation`` the share of time in an optimizer
    step. Rates are by the minute of the desktops' time. ``wasted`` is the share of played steps never trained on.
    ``stale_share`` is the share of rewarded trajectories of the whole run that were too old when their group closed,
    and ``stale_length`` how many times as long as the mean of all those are.
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


def utilization_metrics(account: Account, after: float) -> UtilizationMetrics:
    """Return the figures between the first version made ``after`` this time and the last one.

    Whole steps of the trainer only: a coupled mode is not judged by a part of its cycle.

    Raises
    ------
    UserError
        If fewer than two versions were made after that time.
    """
    made = [step for step in account.trained if step.at >= after]
    if len(made) < 2:
        raise UserError(
            f"{len(made)} optimizer steps after the first {after / 60:g} minutes of the desktops' time: too few to "
            "judge, let it run for longer"
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
    )


def staleness_bias(account: Account) -> tuple[float | None, float | None]:
    """Return the share of rewarded trajectories that were too old to train on, and their length against all's mean."""
    if account.left_out is None or not account.finished:
        return None, None
    trajectories, steps = account.left_out
    mean = sum(count for _, count in account.finished) / len(account.finished)
    return trajectories / len(account.finished), steps / trajectories / mean if trajectories and mean else None


def overlap(spans: list[tuple[float, float]], start: float, end: float) -> float:
    """Return how much of the time from ``start`` to ``end`` all spans cover, together."""
    return sum(max(0.0, min(b, end) - max(a, start)) for a, b in spans)


def covered_time(spans: list[tuple[int, float, float]], start: float, end: float) -> float:
    """Return how long at least one span of a worker lasts between ``start`` and ``end``, summed over workers."""
    reached: dict[int, float] = {}
    total = 0.0
    for worker, a, b in sorted(spans, key=lambda span: span[1]):
        begin = max(a, start, reached.get(worker, start))
        stop = min(b, end)
        if stop > begin:
            total += stop - begin
        reached[worker] = max(reached.get(worker, start), b)
    return total
