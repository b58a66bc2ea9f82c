"""Alarms of a run, each a pure function of its subject.

A bound is where a run is broken under any recipe, not where it could be better: frequent alarms are not read.
"""

import itertools
from collections.abc import Sequence
from statistics import fmean

import msgspec

from console.runs.run_folder import ProcessDeaths
from console.runs.run_state import RunState
from console.views.page.time_curves import describe_stalls
from topics.trained import MISMATCH_ALARM_NATS, TrainedStep
from topics.values import OutcomeKind

WINDOW = 5
"""Optimizer steps of a mean that is compared."""
MAX_STEPS = 500
"""Newest optimizer steps that are considered."""
ENTROPY_SHARE = 0.1
"""Entropy below this share of its first values has collapsed: the policy no longer explores."""
REWARD_WINDOW = 20
"""Optimizer steps of a mean of rewards: with few groups a step, fewer differ by chance."""
REWARD_SHARE = 0.5
"""Reward below this share of its best has collapsed."""
REWARD_WORTH = 0.2
"""A best reward below this is too low to collapse."""
BURST = 20
"""Newest episodes that are considered for faults."""
BURST_SHARE = 1 / 3
"""A larger share of faults among them is a burst."""
FAULT_OUTCOMES: tuple[OutcomeKind, ...] = ("env_error", "policy_error", "lost")


class Alarm(msgspec.Struct, frozen=True):
    """A sentence, and the page with its parameters that shows more."""

    kind: str
    text: str
    page: str
    params: dict[str, str] = {}


def find_alarms(state: RunState, now_ms: int, *, live: bool) -> list[Alarm]:
    """Return the alarms of a run; silent topics are alarms only in a ``live`` training phase."""
    steps = [state.trained[number] for number in sorted(state.trained)[-MAX_STEPS:]]
    newest = steps[-1] if steps else None
    outcomes = [trajectory.outcome for trajectory in itertools.islice(reversed(state.finished.values()), BURST)]
    alarms = [
        *(Alarm("stall", text, "time") for text in (describe_stalls(state, now_ms) if live else ())),
        lost_orders(state.lost),
        fault_burst(outcomes),
        entropy_collapse([step.metrics["entropy"] for step in steps if "entropy" in step.metrics]),
        reward_collapse([step.metrics["reward"] for step in steps if "reward" in step.metrics]),
        engine_gap(newest),
        not_finite(newest),
    ]
    return [alarm for alarm in alarms if alarm is not None]


def process_deaths(deaths: Sequence[ProcessDeaths]) -> list[Alarm]:
    """Return an alarm for each process that has died."""
    newest = {death.process: death for death in sorted(deaths, key=lambda death: death.at_ms)}
    times = {process: sum(death.times for death in deaths if death.process == process) for process in newest}
    counts = {process: "once" if count == 1 else f"{count} times" for process, count in times.items()}
    return [
        Alarm("died", f"{process} has died {counts[process]}, the last time: {last.reason}", "report")
        for process, last in newest.items()
    ]


def lost_orders(count: int) -> Alarm | None:
    """Return an alarm if orders were lost: offsets were moved, records removed, or a reader refused them."""
    if not count:
        return None
    text = f"{count} orders were lost and placed again: a record of each never arrived"
    return Alarm("lost", text, "trajectories", {"outcome": "lost"})


def fault_burst(newest: Sequence[OutcomeKind]) -> Alarm | None:
    """Return an alarm if too many of the newest :data:`BURST` episodes ended in a fault."""
    faults = sum(outcome in FAULT_OUTCOMES for outcome in newest)
    if len(newest) < BURST or faults <= BURST * BURST_SHARE:
        return None
    outcome = max(FAULT_OUTCOMES, key=newest.count)
    text = f"{faults} of the last {BURST} episodes ended in a fault of the infrastructure"
    return Alarm("faults", text, "trajectories", {"outcome": outcome})


def entropy_collapse(entropies: Sequence[float]) -> Alarm | None:
    """Return an alarm if the newest entropies (nats a token, by step) are a small share of the first ones."""
    if len(entropies) < 2 * WINDOW:
        return None
    first, last = fmean(entropies[:WINDOW]), fmean(entropies[-WINDOW:])
    if first <= 0 or last >= ENTROPY_SHARE * first:
        return None
    text = f"entropy collapsed: {last:.3g} nats a token in the last {WINDOW} steps, {first:.3g} at first"
    return Alarm("entropy", text, "steps", {"q": "entropy"})


def reward_collapse(rewards: Sequence[float]) -> Alarm | None:
    """Return an alarm if the newest mean rewards (by step) are a small share of their best."""
    window = REWARD_WINDOW
    if len(rewards) < 2 * window:
        return None
    best = max(fmean(rewards[start : start + window]) for start in range(len(rewards) - 2 * window + 1))
    last = fmean(rewards[-window:])
    if best < REWARD_WORTH or last >= REWARD_SHARE * best:
        return None
    text = f"reward collapsed: {last:.2f} in the last {window} steps, {best:.2f} at its best"
    return Alarm("reward", text, "steps", {"q": "^reward$"})


def engine_gap(newest: TrainedStep | None) -> Alarm | None:
    """Return an alarm if engine and trainer disagree on the log-probabilities of the same weights in a step."""
    gap = newest.metrics.get("same_version_mismatch", 0.0) if newest is not None else 0.0
    if newest is None or gap <= MISMATCH_ALARM_NATS:
        return None
    text = f"engine and trainer disagree by {gap:.3g} nats a token on the same weights in step {newest.train_step}"
    return Alarm("gap", text, "step", {"id": str(newest.train_step)})


def not_finite(newest: TrainedStep | None) -> Alarm | None:
    """Return an alarm if the newest step skipped updates or groups whose numbers were not finite."""
    if newest is None:
        return None
    updates, groups = (int(newest.metrics.get(name, 0)) for name in ("updates_not_finite", "not_finite_groups"))
    if not updates and not groups:
        return None
    text = f"step {newest.train_step} skipped {updates} updates and {groups} groups with numbers that are not finite"
    return Alarm("not-finite", text, "step", {"id": str(newest.train_step)})
