"""Writes a run's report: report.json for programs, report.html, one self-contained page, for people.

Sample episodes on the page are the same held-out task before and after training, screen by screen.
"""

import asyncio
import base64
import itertools
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup

from dart_streams.bus.clients import Publisher
from dart_streams.bus.lag import Lag
from dart_streams.config import Policy
from dart_streams.history.evaluation import EvaluationEpisode, EvaluationResult
from dart_streams.history.metrics_reader import MetricsReader
from dart_streams.history.run_folder import RunFolder
from dart_streams.history.run_follower import RunFollower, following
from dart_streams.history.run_state import RunState
from dart_streams.store import MissingBlob, SyncStore, connect
from dart_streams.views import metrics, plots
from dart_streams.views.metrics import USAGE_FILE, ReportInputs, usages
from dart_streams.views.pointers import Point, points_of
from dart_streams.views.terminal import shown
from topics.observations import Observation

LOST_UNKNOWN = "lost orders unknown: the broker did not say what the env workers had committed"
SAMPLES = 4
SCREENS = 8
TEMPLATE = "report.html.j2"


class Shot(msgspec.Struct, frozen=True, kw_only=True):
    """One screen as a data URL, and the action taken on it: its text, and where it points."""

    image: str
    width: int
    height: int
    text: str = ""
    points: tuple[Point, ...] = ()


class SampleEpisode(msgspec.Struct, frozen=True, kw_only=True):
    """One episode. ``skipped`` counts screens left out to keep the strip short."""

    task_id: str
    instruction: str
    outcome: str
    reason: str
    version: str
    shots: tuple[Shot, ...]
    skipped: int


async def finish(folder: RunFolder, follower: RunFollower | None, lags: list[Lag] | None) -> str:
    """Write the report of a run that has just ended, and return its headline."""
    assert follower is not None
    return await asyncio.to_thread(write_files, folder, follower.progress, lags)


async def rewrite(folder: RunFolder) -> str:
    """Write the report of an earlier run again, reading its topics anew."""
    config = folder.config()
    async with (
        Publisher(config.bus, "report") as publisher,
        following(config.bus, publisher, config.telemetry.stall_s) as follower,
    ):
        lags = await follower.read_final()
    return await asyncio.to_thread(write_files, folder, follower.progress, lags)


def write_files(folder: RunFolder, progress: RunState, lags: list[Lag] | None) -> str:
    """Read the store and the metrics, compute the report, and write both files; return its headline."""
    config = folder.config()
    session = connect(config.store)
    try:
        store = SyncStore(session, config.bus.run, config.store.blob_cache_mb)
        inputs = ReportInputs(
            config=config,
            tasks=folder.tasks(),
            journal=folder.journal(),
            progress=progress,
            trained=store.trained(),
            readings=MetricsReader(folder.path / "metrics"),
            lags=lags,
            usage=usages(folder.path / "metrics" / USAGE_FILE),
        )
        report = metrics.report(inputs)
        samples = samples_of(inputs, store)
    finally:
        session.cluster.shutdown()
    (folder.path / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    (folder.path / "report.html").write_text(render(folder, inputs, report, samples))
    return headline(report, folder.path / "report.html")


def samples_of(inputs: ReportInputs, store: SyncStore) -> list[tuple[SampleEpisode, SampleEpisode]]:
    """Read the episodes to show: the same task before and after."""
    before, after = metrics.evaluations(inputs)
    if before is None or after is None:
        return []
    policy = inputs.config.policy
    return [
        (load_episode(store, first, policy), load_episode(store, second, policy))
        for first, second in choose(before, after, SAMPLES)
    ]


def headline(report: dict[str, Any], place: Path) -> str:
    """Sum up a run in one line."""
    before, after = report["success_before"], report["success_after"]
    parts = [f"success {before:.1%} before, {after:.1%} after"] if before is not None and after is not None else []
    if before is not None and after is None:
        parts = [f"success {before:.1%}"]
    lost = LOST_UNKNOWN if report["lost"] is None else f"{report['lost']} lost"
    counts = f"{report['train_steps']} optimiser steps; {report['episodes']} episodes; {lost}"
    return "; ".join([*parts, counts, f"report: {place}"])


def render(
    folder: RunFolder,
    inputs: ReportInputs,
    report: dict[str, Any],
    samples: list[tuple[SampleEpisode, SampleEpisode]],
) -> str:
    """Return the page."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"share": share, "figure": figure, "signed": signed, "brief": brief}
    template = environment.from_string(resources.files("dart_streams.views").joinpath(TEMPLATE).read_text())
    phases = inputs.journal.phases
    started = datetime.fromtimestamp(phases[0].started_ms / 1000, UTC) if phases else datetime.now(UTC)
    return template.render(
        run=folder.id,
        started=f"{started:%d %B %Y, %H:%M} UTC",
        config=inputs.config,
        report=report,
        minutes=inputs.circle_s / 60,
        cards=cards(report),
        ranked=ranked(report["per_task"]),
        plots=drawn(inputs, report),
        samples=samples,
        settings=folder.config_file.read_text(),
    )


def drawn(inputs: ReportInputs, report: dict[str, Any]) -> dict[str, Markup]:
    """Return every plot by name; empty where there is no data for it."""
    before, after = metrics.evaluations(inputs)
    steps = {part: report["step_ms"][part]["mean"] for part in ("queue", "generate", "overhead", "execute")}
    slots = {state: value * 100 for state, value in report["slot_time"].items()}
    cpu = dict(sorted(report["cpu_s"].items(), key=lambda item: -item[1]))
    made = {
        "success": plots.success(inputs, before, after),
        "pages": plots.pages(before, after),
        "flow": plots.flow(inputs),
        "staleness": plots.staleness(inputs),
        "pauses": plots.pauses(inputs),
        "learning": plots.learning(inputs),
        "outcomes": plots.outcomes(inputs),
        "phases": plots.phases(inputs),
        "steps": plots.shares("One environment step, mean", {k: v for k, v in steps.items() if v}, " ms"),
        "slots": plots.shares("Slot time in training", slots, " %"),
        "cpu": plots.shares("CPU seconds in training, by process", cpu, " s", 9.6),
    }
    # The text is SVG that this program drew.
    return {name: Markup(svg or "") for name, svg in made.items()}


def cards(report: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the key metrics: value, name, and what it means."""
    stale, pause, overhead = report["staleness"], report["weight_switch_ms"], report["overhead_ms"]
    episodes = f"{report['env_steps']:,} in {report['episodes']:,} episodes"
    lost = "unknown" if report["lost"] is None else figure(report["lost"])
    p99 = f"p99 {figure(overhead['p99'])} ms, without generation"
    return [
        (figure(report["env_steps_per_s"]), "env steps/s", episodes),
        (share(report["env_utilisation"]), "environments busy", "slot time with an episode under way"),
        (f"{figure(overhead['p50'])} ms", "overhead a step, p50", p99),
        (str(report["versions_served"]), "versions served in place", f"{report['train_steps']} optimiser steps"),
        (f"{figure(pause['p50'])} ms", "weight switch pause, p50", f"longest {figure(pause['max'])} ms"),
        (figure(stale["mean"]), "versions stale, mean", f"oldest {figure(stale['max'])}"),
        (share(report["trainer"]["idle_share"]), "trainer idle", "of training time, waiting for groups"),
        (lost, "lost orders", f"{report['requests']['timed_out']} requests timed out"),
    ]


def ranked(per_task: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return the pages, those with the highest success first, as the plot has them."""
    return sorted(per_task.items(), key=lambda item: -((item[1]["after"] or {}).get("rate") or 0.0))


def brief(action: str) -> str:
    """Shorten an action's text for a caption."""
    text = re.sub(r"(start_box|end_box|content|key|direction)=", "", action.removeprefix("Action:").strip())
    return re.sub(r"'\((\d+), ?(\d+)\)'", r"\1,\2", text)


def share(value: float | None) -> str:
    """Format a share as a percentage."""
    return shown(value, ".0%")


def figure(value: float | None) -> str:
    """Format a number with three digits, a count whole."""
    return shown(value, ",.3g" if isinstance(value, float) else ",")


def signed(value: float) -> str:
    """Format a change in points."""
    return f"{value * 100:+.0f}"


def choose(
    before: EvaluationResult, after: EvaluationResult, count: int
) -> list[tuple[EvaluationEpisode, EvaluationEpisode]]:
    """Choose pairs of the same task, a page each: those that were learnt first, then long ones."""
    earlier = {episode.index: episode for episode in before.episodes}
    pairs = [(earlier[e.index], e) for e in after.episodes if e.index in earlier]

    def rank(pair: tuple[EvaluationEpisode, EvaluationEpisode]) -> tuple[float, int, int]:
        first, second = pair[0].trajectory, pair[1].trajectory
        return (first.reward or 0.0) - (second.reward or 0.0), -second.steps, pair[0].index

    pairs.sort(key=rank)
    chosen: dict[str, tuple[EvaluationEpisode, EvaluationEpisode]] = {}
    for first, second in pairs:
        chosen.setdefault(first.page, (first, second))
    return list(chosen.values())[:count]


def load_episode(store: SyncStore, episode: EvaluationEpisode, policy: Policy) -> SampleEpisode:
    """Read an episode's screens; one that is missing in the store is left out."""
    observations = store.steps(episode.trajectory.trajectory_id)
    shots = list(shots_of(store, observations, policy))
    kept = shots if len(shots) <= SCREENS else [*shots[: SCREENS - 2], *shots[-2:]]
    end = observations[-1].end if observations else None
    low, high = episode.trajectory.version_min, episode.trajectory.version_max
    return SampleEpisode(
        task_id=episode.task_id,
        instruction=observations[0].instruction if observations else "",
        outcome=episode.trajectory.outcome,
        reason=end.reason if end else "",
        version=str(high) if low == high else f"{low} to {high}",
        shots=tuple(kept),
        skipped=len(shots) - len(kept),
    )


def shots_of(store: SyncStore, observations: list[Observation], policy: Policy) -> Iterator[Shot]:
    """Yield each screen with the action that the policy took on it."""
    for observation, next_one in itertools.zip_longest(observations, observations[1:]):
        ref, taken = observation.screenshot, next_one and next_one.taken
        if ref is None:
            continue
        try:
            data = store.get_blob(ref)
        except MissingBlob:
            continue
        yield Shot(
            image=f"data:{ref.media_type};base64,{base64.b64encode(data).decode()}",
            width=ref.width,
            height=ref.height,
            text=(taken.action or taken.text) if taken else "",
            points=points_of(taken.action, ref, policy) if taken and taken.action else (),
        )
