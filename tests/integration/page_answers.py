"""What the page's views answer of a run and of its bundle, and where two answers differ."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from console.runs.bundle import Bundle
from console.runs.run_folder import RunFolder
from console.views.page.bundle_source import BundleSource
from console.views.page.live_source import LiveSource
from console.views.page.source import SHOWN, RunSource
from console.views.page.views import PageViews
from dart_streams.config import Config
from dart_streams.deadline import Deadline

BOUND_S = 120.0
OF_THE_RUN_ALONE = {"kind", "phase", "now_ms", "phase_ms", "phases", "stalls"}
"""What a bundle cannot know or says otherwise: it has a run's topics, spans and settings, no journal and no clock."""
REPORTED = ("success_before", "success_after", "per_task", "evaluation", "train_steps", "episodes", "env_steps")
"""Of the report what comes from the log: the rest is from metrics, which a bundle has not, or by the journal's time."""
SOME = 6


async def answers(source: RunSource) -> dict[str, Any]:
    """Return the data of the pages, by view and query."""
    views = PageViews(source)
    found: dict[str, Any] = {}

    async def ask(name: str, **query: str) -> Any:
        answer = msgspec.json.decode(msgspec.json.encode(await views.answer(name, query)))
        found[" ".join([name, *query.values()])] = answer
        return answer

    for name in ("time", "compare"):
        await ask(name)
    report = await ask("report")
    found["report"] = {name: report["report"][name] for name in REPORTED} | {"samples": report["samples"]}
    found["slots"] = len(await views.answer("wall", {}))
    found["header"] = (await ask("run"))["header"]
    del found["run"]
    for step in (await ask("steps"))["steps"]:
        await ask("step", id=str(step))
    for task in await ask("tasks"):
        await ask("task", id=task["task_id"])
    rows = (await ask("trajectories"))["rows"]
    for row in rows[:: max(1, len(rows) // SOME)]:
        await ask("trajectory", id=row["trajectory_id"])
        await ask("prompt", id=row["trajectory_id"], step="0")
        await ask("find", id=row["trajectory_id"])
    for group in {row["group_id"] for row in rows if row["purpose"] == "train"}:
        await ask("group", id=group)
    for topic in SHOWN:
        await ask("log", topic=topic.name)
    return found


async def of_run(config: Config, made: RunFolder) -> dict[str, Any]:
    """Return the answers of a run that is over, read from its services."""
    source = LiveSource(config, made)
    reading = asyncio.create_task(source.run())
    deadline = Deadline(BOUND_S)
    try:
        while not source.progress.ready:
            assert not deadline.expired, source.progress
            source.note_viewer()
            await asyncio.sleep(0.05)
        return await answers(source)
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def of_bundle(path: Path) -> dict[str, Any]:
    """Return the answers of a bundle."""
    source = BundleSource(Bundle(path)).read()
    try:
        return await answers(source)
    finally:
        await source.close()


def differences(first: Any, second: Any, place: str = "") -> list[str]:
    """Return where two answers differ."""
    if isinstance(first, dict) and isinstance(second, dict):
        names = sorted((first.keys() | second.keys()) - OF_THE_RUN_ALONE)
        pairs = [(name, first.get(name), second.get(name)) for name in names]
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        pairs = [(str(number), *pair) for number, pair in enumerate(zip(first, second, strict=True))]
    else:
        return [] if first == second else [f"{place}: {str(first)[:200]} | {str(second)[:200]}"]
    return [found for name, one, other in pairs for found in differences(one, other, f"{place}/{name}")]
