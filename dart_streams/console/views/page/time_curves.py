"""A run over time for the page: success, rate, staleness, versions and switches, and who waits for whom. Pure."""

from collections import defaultdict

import msgspec

from dart_streams.console.runs.curated_ages import curated_ages
from dart_streams.console.runs.run_folder import PhaseLog, RunPhase
from dart_streams.console.runs.run_state import RunState, WeightSwitch
from dart_streams.console.runs.stalls import LastArrival, Stall, explain_stall, find_stalls
from dart_streams.console.runs.time_slices import SLICE_MS, split_span

MOST_POINTS = 600
"""Slices of a curve; of a longer run several are taken together."""
STALLED_S = 15.0


class SliceCurves(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over slices of ``width_ms``, one entry each in every list; times are the slices' ends (epoch ms).

    ``busy_slots`` have an episode, of which ``acting_slots`` execute an action.
    """

    width_ms: int
    at_ms: list[int]
    success: list[float | None]
    steps_per_s: list[float]
    busy_slots: list[float]
    acting_slots: list[float]
    episodes: list[int]
    staleness_mean: list[float | None]
    staleness_max: list[int | None]


class VersionTime(msgspec.Struct, frozen=True):
    """A weight version and when it was published."""

    version: int
    at_ms: int


class StallWords(msgspec.Struct, frozen=True):
    """A silent topic, and the likely reason."""

    stall: Stall
    reason: str


class TimeView(msgspec.Struct, frozen=True, kw_only=True):
    """The run over time; ``serving`` has by worker what it served from when on, ``stalls`` is empty when all moves."""

    curves: SliceCurves
    phases: tuple[RunPhase, ...]
    published: list[VersionTime]
    serving: dict[str, list[VersionTime]]
    switches: list[WeightSwitch]
    failed_loads: list[tuple[str, int]]
    stalls: list[StallWords]
    activity: dict[str, tuple[int, int, str]]
    slots: int


def over_time(state: RunState, journal: PhaseLog, now_ms: int, slots: int) -> TimeView:
    """Return the run over time; ``slots`` counts all environment slots."""
    serving: defaultdict[str, list[VersionTime]] = defaultdict(list)
    for (version, worker), first in sorted(state.served.items()):
        serving[worker].append(VersionTime(version, first.since_ms))
    return TimeView(
        curves=curves(state, now_ms, slots),
        phases=journal.phases,
        published=[VersionTime(number, made.at_ms) for number, made in sorted(state.versions.items())],
        serving=dict(sorted(serving.items())),
        switches=list(state.switches),
        failed_loads=sorted(state.failed_loads),
        stalls=stalled(state, now_ms),
        activity={name: (a.records, a.at_ms, a.sender) for name, a in sorted(state.activity.items())},
        slots=slots,
    )


def stalled(state: RunState, now_ms: int) -> list[StallWords]:
    """Return the topics that have been silent for long, those whose writers have newer input first.

    By the times that their records carry, which a bundle has as well; the monitor, which warns, goes by arrival.
    """
    seen = {topic: LastArrival(activity.at_ms / 1000, activity.sender) for topic, activity in state.activity.items()}
    begun_s = min((arrival.at_s for arrival in seen.values()), default=now_ms / 1000)
    silent = find_stalls(state.activity, seen, begun_s, now_ms / 1000, STALLED_S)
    return [StallWords(stall, explain_stall(stall)) for stall in silent]


def curves(state: RunState, now_ms: int, slots: int) -> SliceCurves:
    """Return the sums over time, in at most :data:`MOST_POINTS` slices; episodes under way keep their slots busy."""
    first, last = min(state.slices, default=0), max(state.slices, default=-1)
    merged = max(1, -(-(last - first + 1) // MOST_POINTS))
    width_ms = merged * SLICE_MS
    ages: defaultdict[int, list[int]] = defaultdict(list)
    for at_ms, age in curated_ages(state):
        ages[(at_ms // SLICE_MS - first) // merged].append(age)
    open_ms: defaultdict[int, float] = defaultdict(float)
    for episode in state.open.values():
        for index, busy_ms in split_span(episode.at_ms, now_ms):
            open_ms[index] += busy_ms
    result = SliceCurves(
        width_ms=width_ms,
        at_ms=[],
        success=[],
        steps_per_s=[],
        busy_slots=[],
        acting_slots=[],
        episodes=[],
        staleness_mean=[],
        staleness_max=[],
    )
    for number, start in enumerate(range(first, last + 1, merged)):
        parts = [part for index in range(start, start + merged) if (part := state.slices.get(index)) is not None]
        busy_ms = sum(part.busy_ms for part in parts) + sum(open_ms[index] for index in range(start, start + merged))
        rewarded, old = sum(part.rewarded for part in parts), ages.get(number, [])
        result.at_ms.append((start + merged) * SLICE_MS)
        result.success.append(sum(part.reward for part in parts) / rewarded if rewarded else None)
        result.steps_per_s.append(sum(part.steps for part in parts) / width_ms * 1000)
        busy = min(float(slots), busy_ms / width_ms)
        result.busy_slots.append(busy)
        result.acting_slots.append(min(busy, sum(part.acting_ms for part in parts) / width_ms))
        result.episodes.append(sum(part.episodes for part in parts))
        result.staleness_mean.append(sum(old) / len(old) if old else None)
        result.staleness_max.append(max(old, default=None))
    return result
