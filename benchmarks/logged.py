"""Account of a real run from its log: activity of slots, rollout workers and trainer. Pure."""

import uuid
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.utilization import Account, OptimizerStep, ServedRequest
from console.runs.run_log import LogRecord, ObservationHeader, ResponseHeader
from console.runs.run_state import RunState
from topics import actions, curated, observations, trained

READ = (observations.TOPIC, actions.TOPIC, curated.TOPIC, trained.TOPIC)
"""Topics needed."""


class Clock(NamedTuple):
    """Converts epoch ms to simulated seconds since the start of the run, cut at its end."""

    began_ms: int
    ended_ms: int
    time_scale: float

    def at(self, epoch_ms: float) -> float:
        """Return the simulated time of a moment, at most that of the end."""
        return (min(epoch_ms, self.ended_ms) - self.began_ms) / 1000 * self.time_scale

    def lasts(self, span_ms: float) -> float:
        """Return a duration in simulated seconds."""
        return span_ms / 1000 * self.time_scale

    def has(self, epoch_ms: float) -> bool:
        """Return whether a moment is before the end."""
        return epoch_ms <= self.ended_ms


class LoggedEpisode(NamedTuple):
    """Start and end of a trajectory, and its observations in step order."""

    began_ms: int
    ended_ms: int
    steps: list[ObservationHeader]


def build_account(state: RunState, clock: Clock, slots: int, workers: int, places: int) -> Account:
    """Return the account of a run whose steps were kept."""
    made = Account(slots, workers, places)
    episodes = [episode for episode in episodes_of(state, clock) if clock.has(episode.began_ms)]
    for episode in episodes:
        made.episodes.append((clock.at(episode.began_ms), clock.at(episode.ended_ms)))
        made.actions += [clock.at(step.at_ms) for step in episode.steps if step.taken and clock.has(step.at_ms)]
        made.requests += [
            ServedRequest(
                clock.at(step.at_ms - step.taken.execute_ms),
                clock.lasts(step.taken.queue_ms),
                clock.lasts(step.taken.queue_ms + step.taken.generate_ms),
            )
            for step in episode.steps
            if step.taken and clock.has(step.at_ms)
        ]
        last = episode.steps[-1]
        if last.end and last.end.reward is not None and clock.has(episode.ended_ms):
            made.finished.append((clock.at(episode.ended_ms), last.step))
    made.generated = sorted(generation_spans(list(state.responses.values()), clock), key=lambda span: span[1])
    made.trained = optimizer_steps(state, clock)
    return made


def episodes_of(state: RunState, clock: Clock) -> list[LoggedEpisode]:
    """Return training trajectories in order of start; unfinished ones last until the end."""
    episodes = []
    for identity, records in state.observations.items():
        steps = [records[number].event for number in sorted(records)]
        if steps[0].order.purpose == "train":
            ended_ms = records[max(records)].metadata.at_ms if steps[-1].end else clock.ended_ms
            episodes.append(LoggedEpisode(began_ms(identity), ended_ms, steps))
    return sorted(episodes, key=lambda episode: episode.began_ms)


def began_ms(trajectory_id: str) -> int:
    """Return the start of a trajectory from its UUIDv7 id."""
    return uuid.UUID(trajectory_id).int >> 80


def generation_spans(responses: Sequence[LogRecord], clock: Clock) -> list[tuple[int, float, float]]:
    """Return worker number, start and end of each response's generation."""
    records = [record for record in responses if clock.has(record.metadata.at_ms)]
    names = sorted({record.event.worker_id for record in records})
    found = []
    for record in records:
        response: ResponseHeader = record.event
        ended_ms = record.metadata.at_ms
        found.append((names.index(response.worker_id), clock.at(ended_ms - response.generate_ms), clock.at(ended_ms)))
    return found


def optimizer_steps(state: RunState, clock: Clock) -> list[OptimizerStep]:
    """Return the optimizer steps with the data they took."""
    found = []
    for step in state.trained.values():
        if not clock.has(step.at_ms):
            continue
        members = [m for name in step.group_ids for m in state.groups[name][0].members if m.source == "online"]
        ages = [step.version - 1 - m.version_min for m in members if m.version_min is not None]
        began = clock.at(step.at_ms - step.metrics.get("train_ms", 0.0))
        steps = sum(len(member.selected) for member in members)
        found.append(OptimizerStep(clock.at(step.at_ms), began, steps, max(ages, default=0)))
    return sorted(found)
