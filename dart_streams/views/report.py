"""Writes a run's report: report.json for programs, report.html for people. Gathers; what figures mean is in figures."""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec

from dart_streams.bus.clients import Publisher
from dart_streams.bus.lag import Lag
from dart_streams.history.metrics_reader import MetricsReader, lines
from dart_streams.history.run_folder import RunFolder
from dart_streams.history.run_follower import RunFollower, following
from dart_streams.history.run_state import RunState
from dart_streams.history.trained_rows import TrainedRows
from dart_streams.store import SyncStore
from dart_streams.views import metrics as figures
from dart_streams.views import report_page as page
from dart_streams.views.report_inputs import USAGE_FILE, ProcessUsage, ReportInputs
from dart_streams.views.sample_episodes import SampleEpisode, choose, load

SAMPLES = 4


async def finish(folder: RunFolder, follower: RunFollower | None, lags: list[Lag]) -> str:
    """Write the report of a run that has just ended, and return its headline."""
    assert follower is not None
    return await asyncio.to_thread(write_files, folder, follower.progress, lags)


async def rewrite(folder: RunFolder) -> str:
    """Write the report of an earlier run again, reading its topics anew."""
    config = folder.config()
    async with (
        Publisher(config.bus, "report") as publisher,
        following(config.bus, publisher, config.telemetry.stall_s) as watch,
    ):
        lags = await watch.read_final()
    return await asyncio.to_thread(write_files, folder, watch.progress, lags)


def write_files(folder: RunFolder, progress: RunState, lags: list[Lag]) -> str:
    """Read the store and the metrics, compute the figures, and write both files."""
    config = folder.config()
    rows = TrainedRows(config)
    try:
        trained = rows.read()
        materials = ReportInputs(
            config=config,
            tasks=folder.tasks(),
            journal=folder.journal(),
            progress=progress,
            trained=trained,
            readings=MetricsReader(folder.path / "metrics"),
            lags=lags,
            usage=usages(folder.path / "metrics" / USAGE_FILE),
        )
        report = figures.report(materials)
        samples = samples_of(materials, SyncStore(rows.connected(), config.bus.run, config.store.blob_cache_mb))
    finally:
        rows.close()
    (folder.path / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    (folder.path / "report.html").write_text(page.render(folder, materials, report, samples))
    return headline(report, folder.path / "report.html")


def samples_of(materials: ReportInputs, store: SyncStore) -> list[tuple[SampleEpisode, SampleEpisode]]:
    """Read the episodes to show: the same task before and after."""
    before, after = figures.evaluations(materials)
    if before is None or after is None:
        return []
    return [
        (load(store, first, materials.config.policy), load(store, second, materials.config.policy))
        for first, second in choose(before, after, SAMPLES)
    ]


def usages(path: Path) -> list[ProcessUsage]:
    """Read the samples of what the processes cost."""
    return [msgspec.convert(line, ProcessUsage) for line in lines(path)] if path.exists() else []


def headline(report: dict[str, Any], place: Path) -> str:
    """Say in a line what came of a run."""
    before, after = report["success_before"], report["success_after"]
    success = f"success {before:.1%} before, {after:.1%} after" if before is not None and after is not None else ""
    parts = [
        success,
        f"{report['train_steps']} optimiser steps",
        f"{report['episodes']} episodes",
        f"{report['lost']} lost",
        f"report: {place}",
    ]
    return "; ".join(part for part in parts if part)
