"""Writes the report of a run: report.json for programs, and its page as one file, report.html."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from console.runs.run_folder import RunFolder
from console.runs.run_follower import RunFollower, follow_run
from console.runs.run_log import read_log
from console.runs.run_state import RunState
from console.views import report_metrics
from console.views.page import export
from console.views.page.assets import load_assets
from console.views.page.live_source import LiveSource
from console.views.page.source import SHOWN
from dart_streams.bus.clients import Publisher
from dart_streams.bus.lag import Lag
from dart_streams.config import Bus

FIGURES = "report.json"
"""The report for programs, in the folder of the run."""
LOST_UNKNOWN = "lost orders unknown: the broker did not return the committed offsets of the env workers"


async def finish(
    folder: RunFolder,
    follower: RunFollower | None,
    lags: list[Lag] | None,
    plots: Path | None,
    notify: Callable[[str], None] = lambda _: None,
) -> str:
    """Write the report of a run that has just ended and return its headline; ``plots`` has the plot library's jar.

    The topics of a long run, of which ``follower`` has forgotten a part, are read again.
    """
    assert follower is not None
    if not follower.progress.is_whole:
        notify("reading the run's topics again from their beginning for the report of this long run")
        return await rewrite(folder, plots)
    return await write_files(folder, follower.progress, lags, plots)


async def rewrite(folder: RunFolder, plots: Path | None) -> str:
    """Write the report of an earlier run again from its topics, and return its headline."""
    config = folder.config()
    async with (
        Publisher(config.bus, "report") as publisher,
        follow_run(config.bus, publisher, config.telemetry.stall_s) as follower,
    ):
        lags = await follower.read_final()
    return await write_files(folder, follower.progress, lags, plots)


async def write_files(folder: RunFolder, progress: RunState, lags: list[Lag] | None, plots: Path | None) -> str:
    """Write report.json and report.html, and return the headline."""
    source = LiveSource(folder.config(), folder, (progress, lags))
    await asyncio.to_thread(fold_rest, progress, source.config.bus)
    report = report_metrics.build_report(await source.report_inputs())
    (folder.path / FIGURES).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    try:
        await export.write(source, load_assets(plots), folder.path / "report.html")
    finally:
        await source.close()
    return format_headline(report, folder.path / "report.html")


def fold_rest(progress: RunState, bus: Bus) -> None:
    """Fold the topics that the page shows and a running run does not follow."""
    for record in read_log(bus, [topic for topic in SHOWN if topic.name not in progress.activity]):
        progress.apply(record.metadata, record.event)


def format_headline(report: dict[str, Any], path: Path) -> str:
    """Return a run in one line."""
    before, after = report["success_before"], report["success_after"]
    success = f"success {before:.1%}" if before is not None else ""
    if success and after is not None:
        success += f" before, {after:.1%} after"
    lost = LOST_UNKNOWN if report["lost"] is None else f"{report['lost']} lost"
    steps = report["train_steps"]
    counts = f"{steps} optimizer step{'s' * (steps != 1)}; {report['episodes']} episodes; {lost}"
    recipe = f"recipe {' and '.join(report['recipe'])}" if report["recipe"] else ""
    return "; ".join([part for part in (recipe, success, counts, f"report: {path}") if part])
