"""The account of a real run, from its topics alone: what slots, rollout workers and trainer did, and when. Pure.

The log does not say in which slot an episode was played, so episodes are put into rows as slots would take them: each
into the row that was free for the longest time.
"""

import heapq
import uuid
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from benchmarks.utilization import Account, OptimiserStep, SlotActivity, SlotSpan
from topics.actions import ActionResponse
from topics.curated import CuratedGroup
from topics.observations import Observation
from topics.trained import TrainedStep


class Clock(NamedTuple):
    """Turns epoch milliseconds into seconds of the desktops' time since the run began; what is later is cut."""

    began_ms: int
    ended_ms: int
    time_scale: float

    def at(self, epoch_ms: float) -> float:
        """Return the desktops' time of a moment, at most that of the run's end."""
        return (min(epoch_ms, self.ended_ms) - self.began_ms) / 1000 * self.time_scale

    def has(self, epoch_ms: float) -> bool:
        """Say whether a moment was before the end."""
        return epoch_ms <= self.ended_ms


class LoggedEvent(NamedTuple):
    """An event and when it was written (epoch milliseconds)."""

    at_ms: int
    event: Any


class RunLog(NamedTuple):
    """What a run wrote, a topic each."""

    observations: Sequence[LoggedEvent]
    actions: Sequence[LoggedEvent]
    curated: Sequence[LoggedEvent]
    trained: Sequence[LoggedEvent]


class LoggedEpisode(NamedTuple):
    """A trajectory's time, and its observations as they were written."""

    began_ms: int
    ended_ms: int
    seen: list[LoggedEvent]


def account(log: RunLog, clock: Clock, slots: int, workers: int, places: int) -> Account:
    """Return the account of a run."""
    made = Account(slots, workers, places)
    episodes = [episode for episode in episodes_of(log.observations, clock) if clock.has(episode.began_ms)]
    for row, episode in zip(in_rows(episodes), episodes, strict=True):
        made.episodes.append((clock.at(episode.began_ms), clock.at(episode.ended_ms)))
        made.spans += spans(episode, row, clock)
        made.actions += [
            clock.at(seen.event.at_ms) for seen in episode.seen if seen.event.taken and clock.has(seen.event.at_ms)
        ]
        last: Observation = episode.seen[-1].event
        if last.end and last.end.reward is not None and clock.has(episode.ended_ms):
            made.finished.append((clock.at(episode.ended_ms), last.step))
    made.generated = sorted(generations(log.actions, clock), key=lambda span: span[1])
    made.trained = trainings(log.curated, log.trained, clock)
    return made


def episodes_of(observations: Iterable[LoggedEvent], clock: Clock) -> list[LoggedEpisode]:
    """Return training trajectories in the order in which they began; one that has not ended lasts until the end."""
    seen: dict[str, list[LoggedEvent]] = defaultdict(list)
    for record in observations:
        if record.event.order.purpose == "train":
            seen[record.event.trajectory_id].append(record)
    episodes = []
    for identity, records in seen.items():
        records.sort(key=lambda record: record.event.step)
        ended_ms = records[-1].at_ms if records[-1].event.end else clock.ended_ms
        episodes.append(LoggedEpisode(began_ms(identity), ended_ms, records))
    return sorted(episodes, key=lambda episode: episode.began_ms)


def began_ms(trajectory_id: str) -> int:
    """Return when a trajectory began: its id is a UUID of version 7."""
    return uuid.UUID(trajectory_id).int >> 80


def in_rows(episodes: Sequence[LoggedEpisode]) -> list[int]:
    """Return a row for each episode, in the order in which they began: the one that was free first."""
    free: list[tuple[int, int]] = []
    rows = []
    for episode in episodes:
        row = heapq.heappop(free)[1] if free and free[0][0] <= episode.began_ms else len(free)
        heapq.heappush(free, (episode.ended_ms, row))
        rows.append(row)
    return rows


def spans(episode: LoggedEpisode, row: int, clock: Clock) -> list[SlotSpan]:
    """Return what an episode's slot did: reset, then waiting and stepping by turns, and the evaluator."""
    found, at_ms = [], float(episode.began_ms)
    for record in episode.seen:
        seen: Observation = record.event
        hung = seen.end is not None and seen.end.kind == "env_error"
        if seen.taken is None:
            found.append(SlotSpan(row, "hang" if hung else "reset", clock.at(at_ms), clock.at(seen.at_ms)))
        else:
            answered_ms = min(at_ms + seen.taken.queue_ms + seen.taken.generate_ms, seen.at_ms)
            acted_ms = answered_ms if hung else max(at_ms, seen.at_ms - seen.taken.execute_ms)
            found.append(SlotSpan(row, "wait", clock.at(at_ms), clock.at(acted_ms)))
            found.append(SlotSpan(row, "hang" if hung else "step", clock.at(acted_ms), clock.at(seen.at_ms)))
        at_ms = float(seen.at_ms)
    end = episode.seen[-1].event.end
    last: SlotActivity = "hang" if end is not None and end.kind == "env_error" else "evaluate"
    found.append(SlotSpan(row, last, clock.at(at_ms), clock.at(episode.ended_ms)))
    return [span for span in found if span.end > span.start]


def generations(actions: Iterable[LoggedEvent], clock: Clock) -> list[tuple[int, float, float]]:
    """Return when each answer was generated, and by which rollout worker (numbered in the order of their names)."""
    records = [record for record in actions if clock.has(record.at_ms)]
    names = sorted({record.event.worker_id for record in records})
    found = []
    for record in records:
        answer: ActionResponse = record.event
        began = clock.at(record.at_ms - answer.generate_ms)
        found.append((names.index(answer.worker_id), began, clock.at(record.at_ms)))
    return found


def trainings(curated: Iterable[LoggedEvent], trained: Iterable[LoggedEvent], clock: Clock) -> list[OptimiserStep]:
    """Return the optimiser steps with what they took."""
    groups: dict[str, CuratedGroup] = {record.event.group_id: record.event for record in curated}
    found = []
    for record in trained:
        step: TrainedStep = record.event
        if not clock.has(step.at_ms):
            continue
        members = [m for name in step.group_ids for m in groups[name].members if m.source == "online"]
        ages = [step.version - 1 - m.version_min for m in members if m.version_min is not None]
        began = clock.at(step.at_ms - step.metrics.get("train_ms", 0.0))
        steps = sum(len(member.selected) for member in members)
        found.append(OptimiserStep(clock.at(step.at_ms), began, steps, max(ages, default=0)))
    return sorted(found)
