"""The judging queue: training rollouts for a person to judge, those with the most doubtful outcomes first. Pure."""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from console.runs.run_state import RunState
from console.views.optional_numbers import median_or_none
from console.views.page.episodes import TrajectoryRow, row_of
from topics.feedback import Judgement
from topics.outcomes import is_success
from topics.trajectories import Trajectory

DoubtKind = Literal["judge", "people", "loop", "straggler"]
ORDER: tuple[DoubtKind, ...] = ("judge", "people", "loop", "straggler")
"""Disagreements come before signs that an outcome may be an accident."""
MAX_ROWS = 100
NEWEST = 4000
"""Newest training rollouts that the queue reads: older ones are too stale for a gradient."""
LOOP_ACTIONS = 3
"""Equal actions on equal screens, one after the other, that count as a loop."""
SLOW_FACTOR = 3.0
"""Times the median duration of its task beyond which a rollout is a straggler."""
LEAST_PEERS = 4
"""Rollouts of a task below which none of them is a straggler."""


class Doubt(msgspec.Struct, frozen=True):
    """A reason to doubt an outcome; ``weight`` compares doubts of one kind, the larger the more doubtful."""

    kind: DoubtKind
    text: str
    weight: float


class QueueRow(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout to judge, with its doubts by :data:`ORDER`, and each person's newest judgement of it."""

    episode: TrajectoryRow
    doubts: list[Doubt]
    judgements: dict[str, Judgement]


class JudgingQueue(msgspec.Struct, frozen=True):
    """The first :data:`MAX_ROWS` rollouts to judge; ``doubtful`` and ``waiting`` count all such rollouts."""

    rows: list[QueueRow]
    doubtful: int
    waiting: int


def judging_queue(state: RunState) -> JudgingQueue:
    """Return the newest training rollouts without an agreed judgement of people, the most doubtful ones first."""
    newest = (one for one in reversed(state.trajectories.values()) if one.purpose == "train")
    rollouts = list(itertools.islice(newest, NEWEST))
    medians = median_durations(rollouts)
    entries = []
    for rollout in rollouts:
        given = (state.feedback[name] for name in state.feedback_on.get(rollout.trajectory_id, ()))
        judgements = {event.author: event.judgement for event in given if event.judgement is not None}
        doubts = find_doubts(rollout, judgements, medians.get(rollout.task_id))
        if rollout.steps and is_open(judgements):
            entries.append((rollout, doubts, judgements))
    entries.sort(key=lambda entry: queue_key(entry[0], entry[1]))
    rows = [
        QueueRow(episode=row_of(rollout, state), doubts=doubts, judgements=judgements)
        for rollout, doubts, judgements in entries[:MAX_ROWS]
    ]
    return JudgingQueue(rows, sum(bool(doubts) for _, doubts, _ in entries), len(entries))


def queue_key(rollout: Trajectory, doubts: list[Doubt]) -> tuple[int, float, int, int, str]:
    """Return what the queue is ordered by: the first doubt, its weight, the number of doubts, then the newest."""
    rank, weight = (ORDER.index(doubts[0].kind), doubts[0].weight) if doubts else (len(ORDER), 0.0)
    return rank, -weight, -len(doubts), -rollout.finished_ms, rollout.trajectory_id


def is_open(judgements: Mapping[str, Judgement]) -> bool:
    """Return whether nobody has judged a rollout, or people disagree on it."""
    return len(set(judgements.values())) != 1


def median_durations(rollouts: Iterable[Trajectory]) -> dict[str, float]:
    """Return the median duration (ms) of each task with at least :data:`LEAST_PEERS` rollouts."""
    durations: defaultdict[str, list[float]] = defaultdict(list)
    for rollout in rollouts:
        durations[rollout.task_id].append(rollout.finished_ms - rollout.started_ms)
    medians = {task: median_or_none(known) for task, known in durations.items() if len(known) >= LEAST_PEERS}
    return {task: median for task, median in medians.items() if median}


def find_doubts(rollout: Trajectory, judgements: Mapping[str, Judgement], median_ms: float | None) -> list[Doubt]:
    """Return the doubts about a rollout's outcome in the order of :data:`ORDER`."""
    doubts: list[Doubt] = []
    verdict, reward = rollout.verdict, rollout.reward
    if verdict is not None and verdict.success is not None and reward is not None:
        difference = abs(float(verdict.success) - reward)
        if verdict.success != is_success(reward):
            said = "a success" if verdict.success else "a failure"
            doubts.append(Doubt("judge", f"{verdict.judge or 'the judge'} says {said}, reward {reward:g}", difference))
    if len(set(judgements.values())) > 1:
        said = ", ".join(f"{author}: {judgement}" for author, judgement in sorted(judgements.items()))
        doubts.append(Doubt("people", said, float(len(judgements))))
    if (repeats := longest_loop(rollout)) >= LOOP_ACTIONS:
        doubts.append(Doubt("loop", f"{repeats} times the same action on the same screen", float(repeats)))
    factor = (rollout.finished_ms - rollout.started_ms) / median_ms if median_ms else 0.0
    if factor > SLOW_FACTOR:
        doubts.append(Doubt("straggler", f"{factor:.1f} times as long as its task's median", factor))
    return doubts


def longest_loop(rollout: Trajectory) -> int:
    """Return the largest number of equal actions on equal screens, one after the other; 0 without known ones."""
    # A recording of before has neither screens nor actions, and an unreadable answer has no name.
    taken = zip(rollout.screens, rollout.actions, strict=False)
    runs = itertools.groupby(taken, key=lambda one: one if one[0] and one[1].name else None)
    return max((len(list(run)) for key, run in runs if key is not None), default=0)
