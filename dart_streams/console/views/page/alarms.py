"""What a person should look at now, each alarm a pure function of what it is about; the bounds are constants here.

A bound is where the thing is broken by any recipe, not where it could be better: an alarm that comes often is not read.
"""

import itertools
from collections.abc import Sequence

import msgspec

from dart_streams.console.runs.run_folder import ProcessDeaths
from dart_streams.console.runs.run_state import RunState
from dart_streams.console.runs.stalls import describe_stall
from dart_streams.console.views.page.time_curves import StallWords, stalled
from topics.trained import MISMATCH_ALARM_NATS, TrainedStep
from topics.values import OutcomeKind

WINDOW = 5
"""Optimizer steps whose mean is compared."""
LOOKED_BACK = 500
"""Newest optimizer steps that are looked at."""
ENTROPY_SHARE = 0.1
"""Entropy below this share of what it was at the beginning has collapsed: the policy does not explore any more."""
REWARD_SHARE = 0.5
"""Reward below this share of its best has collapsed."""
REWARD_WORTH = 0.2
"""A best reward below this is none that could collapse."""
BURST = 20
"""Newest episodes that are looked at for faults."""
BURST_SHARE = 1 / 3
"""More faults than this share of them are a burst."""
FAULT_OUTCOMES: tuple[OutcomeKind, ...] = ("env_error", "policy_error", "lost")


class Alarm(msgspec.Struct, frozen=True):
    """A sentence, and the page (with its parameters) that shows more."""

    kind: str
    text: str
    page: str
    params: dict[str, str] = {}


def alarms(state: RunState, now_ms: int, *, live: bool) -> list[Alarm]:
    """Return the alarms of a run; of what stands still only while the circle should turn (``live``)."""
    steps = [state.trained[number] for number in sorted(state.trained)[-LOOKED_BACK:]]
    outcomes = [one.outcome for one in itertools.islice(reversed(state.finished.values()), BURST)]
    found = [
        *(stall(words) for words in (stalled(state, now_ms) if live else ())),
        lost_orders(state.lost),
        fault_burst(outcomes),
        entropy_collapse(values(steps, "entropy")),
        reward_collapse(values(steps, "reward")),
        engine_gap(steps[-1] if steps else None),
        not_finite(steps[-1] if steps else None),
    ]
    return [alarm for alarm in found if alarm is not None]


def values(steps: Sequence[TrainedStep], name: str) -> list[float]:
    """Return a metric of the steps that have it, in order."""
    return [step.metrics[name] for step in steps if name in step.metrics]


def mean(numbers: Sequence[float]) -> float:
    """Return the mean of some numbers."""
    return sum(numbers) / len(numbers)


def died(deaths: Sequence[ProcessDeaths]) -> list[Alarm]:
    """Return an alarm for each process that has died."""
    newest = {one.process: one for one in sorted(deaths, key=lambda one: one.at_ms)}
    times = {process: sum(one.times for one in deaths if one.process == process) for process in newest}
    return [
        Alarm("died", f"{process} has died {counted(times[process])}, the last time: {last.reason}", "report")
        for process, last in newest.items()
    ]


def counted(times: int) -> str:
    """Return how often something was, in words."""
    return "once" if times == 1 else f"{times} times"


def stall(words: StallWords) -> Alarm:
    """Return the alarm of a topic that is silent."""
    return Alarm("stall", describe_stall(words.stall), "time")


def lost_orders(count: int) -> Alarm | None:
    """Return an alarm if orders were lost: somebody moved offsets, records were removed, or a reader refused them."""
    if not count:
        return None
    text = f"{count} orders could never end, and were ordered again: a record of each was lost on its way"
    return Alarm("lost", text, "trajectories", {"outcome": "lost"})


def fault_burst(newest: Sequence[OutcomeKind]) -> Alarm | None:
    """Return an alarm if too many of the newest :data:`BURST` episodes ended in a fault; None of fewer episodes."""
    faults = sum(outcome in FAULT_OUTCOMES for outcome in newest)
    if len(newest) < BURST or faults <= BURST * BURST_SHARE:
        return None
    outcome = max(FAULT_OUTCOMES, key=lambda kind: sum(one == kind for one in newest))
    text = f"{faults} of the last {BURST} episodes ended in a fault of the infrastructure"
    return Alarm("faults", text, "trajectories", {"outcome": outcome})


def entropy_collapse(entropies: Sequence[float]) -> Alarm | None:
    """Return an alarm if the newest entropies (nats a token, by step) are a small share of the first ones."""
    if len(entropies) < 2 * WINDOW:
        return None
    first, last = mean(entropies[:WINDOW]), mean(entropies[-WINDOW:])
    if first <= 0 or last >= ENTROPY_SHARE * first:
        return None
    text = f"entropy collapsed: {last:.3g} nats a token in the last {WINDOW} steps, {first:.3g} at first"
    return Alarm("entropy", text, "steps", {"q": "entropy"})


def reward_collapse(rewards: Sequence[float]) -> Alarm | None:
    """Return an alarm if the newest mean rewards (by step) are a small share of the best that they were."""
    if len(rewards) < 2 * WINDOW:
        return None
    best = max(mean(rewards[start : start + WINDOW]) for start in range(len(rewards) - 2 * WINDOW + 1))
    last = mean(rewards[-WINDOW:])
    if best < REWARD_WORTH or last >= REWARD_SHARE * best:
        return None
    text = f"reward collapsed: {last:.2f} in the last {WINDOW} steps, {best:.2f} at its best"
    return Alarm("reward", text, "steps", {"q": "^reward$"})


def engine_gap(newest: TrainedStep | None) -> Alarm | None:
    """Return an alarm if engine and trainer disagree on the log-probabilities of the same weights in a step."""
    gap = newest.metrics.get("same_version_mismatch", 0.0) if newest is not None else 0.0
    if newest is None or gap <= MISMATCH_ALARM_NATS:
        return None
    text = f"engine and trainer disagree by {gap:.3g} nats a token on the same weights in step {newest.train_step}"
    return Alarm("gap", text, "step", {"id": str(newest.train_step)})


def not_finite(newest: TrainedStep | None) -> Alarm | None:
    """Return an alarm if a step skipped updates, or groups since the one before, because they were not finite."""
    if newest is None:
        return None
    updates, groups = (int(newest.metrics.get(name, 0)) for name in ("updates_not_finite", "not_finite_groups"))
    if not updates and not groups:
        return None
    text = f"step {newest.train_step} skipped {updates} updates and {groups} groups: they gave no finite numbers"
    return Alarm("not-finite", text, "step", {"id": str(newest.train_step)})
