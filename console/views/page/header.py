"""The header of the page: the run, its phase, a few numbers and the alarms. Pure."""

import msgspec

from console.runs.time_slices import SLICE_MS
from console.views.page.alarms import Alarm, find_alarms, process_deaths
from console.views.page.source import RunSource

RATE_SLICES = 3


class PageHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The header; ``phase`` is the outcome of a run that has ended, ``success`` the newest episodes' mean reward."""

    run: str
    kind: str
    ready: bool
    text: str
    phase: str
    phase_ms: int | None
    now_ms: int
    records: int
    steps: int
    steps_per_s: float
    episodes: int
    open: int
    success: float | None
    groups: int
    groups_consumed: int
    version: int | None
    served: int | None
    alarms: list[Alarm]


def page_header(source: RunSource) -> PageHeader:
    """Return the present header."""
    state, journal, now_ms = source.state, source.journal(), source.now_ms
    phase = journal.phases[-1] if journal.phases else None
    running = journal.outcome == "unfinished"
    live = running and phase is not None and phase.ended_ms is None
    newest = now_ms // SLICE_MS
    window = [state.slices[n].steps for n in range(newest - RATE_SLICES, newest) if n in state.slices]
    return PageHeader(
        run=source.name,
        kind=source.kind,
        ready=source.progress.ready,
        text=source.progress.text,
        phase=phase.name if phase and running else journal.outcome,
        phase_ms=phase.started_ms if phase and live else None,
        now_ms=now_ms,
        records=sum(activity.records for activity in state.activity.values()),
        steps=state.steps,
        steps_per_s=sum(window) / (RATE_SLICES * SLICE_MS / 1000) if running else 0.0,
        episodes=len(state.finished),
        open=len(state.open),
        success=state.recent_success,
        groups=len(state.groups),
        groups_consumed=state.groups_consumed,
        version=state.newest_version,
        served=state.served_version,
        alarms=[
            *process_deaths(journal.deaths),
            *find_alarms(state, now_ms, live=live and phase is not None and phase.name == "circle"),
        ],
    )
