"""A run over time: success, rate, staleness, weight versions and switches, and silent topics. Pure."""

from collections import defaultdict

import msgspec

from console.runs.run_folder import RunPhase
from console.runs.run_state import RunState, WeightSwitch
from console.runs.time_slices import SLICE_MS, TimeSlice, split_span
from console.runs.topic_activity import LastArrival, describe_stall, find_stalls
from console.runs.weight_versions import curated_ages
from console.views.page.natural_order import natural_key
from console.views.page.source import SHOWN, RunSource
from topics import BY_NAME

MAX_POINTS = 600
"""Maximum number of points of a curve; slices of a longer run are merged."""
SILENCE_BOUND_S = 15.0


class SliceCurves(msgspec.Struct, kw_only=True):
    """Sums over slices of ``width_ms``, one entry each in every list; ``at_ms`` is the end of a slice (epoch ms).

    ``busy_slots`` have an episode; ``acting_slots`` of them execute an action.
    """

    width_ms: int
    at_ms: list[int] = []
    success: list[float | None] = []
    steps_per_s: list[float] = []
    busy_slots: list[float] = []
    acting_slots: list[float] = []
    episodes: list[int] = []
    staleness_mean: list[float | None] = []
    staleness_max: list[int | None] = []


class VersionTime(msgspec.Struct, frozen=True):
    """A weight version and the time of its publication, or of a worker's switch to it."""

    version: int
    at_ms: int


class TimeView(msgspec.Struct, frozen=True, kw_only=True):
    """The run over time. ``serving`` has the switches of each worker; ``stalls`` has a sentence per silent topic."""

    curves: SliceCurves
    phases: tuple[RunPhase, ...]
    published: list[VersionTime]
    serving: dict[str, list[VersionTime]]
    switches: list[WeightSwitch]
    stalls: list[str]
    activity: dict[str, tuple[int, int, str]]
    slots: int


def view_time(source: RunSource) -> TimeView:
    """Return the run over time."""
    state, now_ms, journal = source.state, source.now_ms, source.journal()
    slots = source.config.env.workers * source.config.env.slots
    serving: defaultdict[str, list[VersionTime]] = defaultdict(list)
    for (version, worker), first in sorted(state.served.items()):
        serving[worker].append(VersionTime(version, first.since_ms))
    return TimeView(
        curves=slice_curves(state, now_ms, slots),
        # A complete run's report leaves out the phase that writes it, which has no end yet.
        phases=tuple(one for one in journal.phases if one.ended_ms or journal.outcome == "unfinished"),
        published=[VersionTime(number, version.at_ms) for number, version in sorted(state.versions.items())],
        serving=dict(sorted(serving.items(), key=lambda item: natural_key(item[0]))),
        switches=list(state.switches),
        stalls=describe_stalls(state, now_ms),
        activity={name: (a.records, a.at_ms, a.sender) for name, a in sorted(state.activity.items())},
        slots=slots,
    )


def describe_stalls(state: RunState, now_ms: int) -> list[str]:
    """Return a sentence for each silent topic, those whose writers have newer input first.

    Silence is by the times in records, which a bundle has as well; the monitor goes by arrival.
    """
    seen = {topic: LastArrival(activity.at_ms / 1000, activity.sender) for topic, activity in state.activity.items()}
    begun_s = min((arrival.at_s for arrival in seen.values()), default=now_ms / 1000)
    stalls = find_stalls(state.activity, seen, begun_s, now_ms / 1000, SILENCE_BOUND_S)
    return [describe_stall(stall) for stall in stalls if BY_NAME[stall.topic] in SHOWN]


def slice_curves(state: RunState, now_ms: int, slots: int) -> SliceCurves:
    """Return the sums over time in at most :data:`MAX_POINTS` slices; running episodes keep their slots busy."""
    first, last = min(state.slices, default=0), max(state.slices, default=-1)
    merged = max(1, -(-(last - first + 1) // MAX_POINTS))
    curves = SliceCurves(width_ms=merged * SLICE_MS)
    parts_of: defaultdict[int, list[TimeSlice]] = defaultdict(list)
    for index in sorted(state.slices):
        parts_of[(index - first) // merged].append(state.slices[index])
    ages: defaultdict[int, list[int]] = defaultdict(list)
    for at_ms, age in curated_ages(state):
        ages[(at_ms // SLICE_MS - first) // merged].append(age)
    open_ms: defaultdict[int, float] = defaultdict(float)
    for episode in state.open.values():
        for index, busy_ms in split_span(episode.at_ms, now_ms):
            open_ms[(index - first) // merged] += busy_ms
    for number, start in enumerate(range(first, last + 1, merged)):
        parts = parts_of[number]
        busy_ms = sum(part.busy_ms for part in parts) + open_ms[number]
        rewarded, ages_here = sum(part.rewarded for part in parts), ages.get(number, [])
        busy_slots = min(float(slots), busy_ms / curves.width_ms)
        curves.at_ms.append((start + merged) * SLICE_MS)
        curves.success.append(sum(part.reward for part in parts) / rewarded if rewarded else None)
        curves.steps_per_s.append(sum(part.steps for part in parts) / curves.width_ms * 1000)
        curves.busy_slots.append(busy_slots)
        curves.acting_slots.append(min(busy_slots, sum(part.acting_ms for part in parts) / curves.width_ms))
        curves.episodes.append(sum(part.episodes for part in parts))
        curves.staleness_mean.append(sum(ages_here) / len(ages_here) if ages_here else None)
        curves.staleness_max.append(max(ages_here, default=None))
    return curves
