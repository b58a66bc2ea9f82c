"""Repeated whole runs of a configuration and their gains: ``dart-streams bench demonstration``.

Gains vary with seeds and machine load, so the summary has median and worst. ``episodes`` ends training at N finished
training episodes, to compare learning at equal data.
"""

import asyncio
import statistics
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import psutil
from rich.console import Console

from console.launch import process_registry, processes
from console.launch.services import jars
from console.launch.session import Session, run_session
from console.launch.supervisor import Supervisor
from console.launch.training_run import TrainingRun
from console.runs import run_folder
from console.runs.process_usage import USAGE_FILE, cpu_seconds, read_usage
from console.runs.run_state import RunState
from console.views import report
from dart_streams.config import Config
from dart_streams.config.hardware import available_cores

AnySession = TypeVar("AnySession", bound=Session)
REPORTED = ("episodes", "train_steps", "env_steps_per_s", "lost", "open", "staleness", "evaluation")
"""Report keys of each run."""


class EpisodeSession(Session):
    """A session whose training phase also ends after N finished training episodes."""

    episodes: int | None = None

    def make_run(self, supervisor: Supervisor) -> TrainingRun:
        """Return the training run with that bound."""
        run = super().make_run(supervisor)
        if self.episodes is not None:
            by_steps, bound = run.enough, self.episodes
            run.enough = lambda state: by_steps(state) or train_episodes(state) >= bound
        return run


def train_episodes(state: RunState) -> int:
    """Return the number of finished training episodes."""
    return sum(trajectory.purpose == "train" for trajectory in state.finished.values())


def measure(config: Config, runs: int, episodes: int | None, tell: Callable[[str], None]) -> dict[str, Any]:
    """Run a configuration N times; return the runs and their summary. Raises UserError if a run fails."""
    found = []
    for number in range(1, runs + 1):
        found.append(run_once(config, episodes))
        tell(f"run {number} of {runs}: {found[-1]['gain']:+.1%} after {found[-1]['episodes']} episodes")
    return {"runs": found, "summary": summarize_runs(found)}


def run_once(config: Config, episodes: int | None) -> dict[str, Any]:
    """Make one run that ends after ``episodes``; return its metrics."""

    def prepare(session: EpisodeSession) -> None:
        session.episodes = episodes

    return run_whole(config, EpisodeSession, prepare)


def run_whole(
    config: Config,
    kind: type[AnySession],
    prepare: Callable[[AnySession], None],
    look: Callable[[run_folder.RunFolder], None] = lambda _: None,
) -> dict[str, Any]:
    """Make one run, with its terminal output in the run's folder; return its metrics.

    ``prepare`` is called with the session before it starts, and ``look`` with the folder while the services are up.
    """
    _, services = process_registry.end_leftovers(Path(config.run.state_dir).absolute() / "runs")
    made = run_folder.create(config, Path(config.tasks.file), f"bench-{uuid.uuid4().hex[:8]}", resume=False)
    programs = processes.find_programs()

    async def finish(ended: TrainingRun) -> None:
        ended.notify(await report.finish(ended.folder, ended.follower, ended.lags, jars.plots_folder()))
        await asyncio.to_thread(look, made)

    with (made.path / "terminal.log").open("w", buffering=1) as shown:
        session = kind(
            made,
            processes.processes_of(made.config(), made.config_file, programs),
            finish,
            Console(file=shown),
            find_policy=lambda supervisor: processes.find_policy(made, supervisor, found=programs),
            owns_services=services,
        )
        prepare(session)
        before = busy_s() - own_s()
        run_session(made, lambda _: session)
        busy = busy_s() - own_s() - before
    written = msgspec.json.decode((made.path / "report.json").read_bytes())
    return report_metrics(written) | {"folder": str(made.path), "machine": machine_load(made, busy)}


def report_metrics(written: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of a report; ``gain`` is the change of the held-out success rate."""
    gains = {item["temperature"]: item["change"]["mean"] for item in written.get("further_temperatures") or []}
    pages = {page: [found["before"]["rate"], found["after"]["rate"]] for page, found in written["per_task"].items()}
    return {name: written.get(name) for name in REPORTED} | {
        "gain": round(written["success_after"] - written["success_before"], 4),
        "gain_at_temperature": gains,
        "success_by_page": pages,
    }


def summarize_runs(found: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the median, worst and best gain over runs."""
    gains = [run["gain"] for run in found]
    return {
        "runs": len(found),
        "gain_median": round(statistics.median(gains), 4),
        "gain_worst": min(gains),
        "gain_best": max(gains),
        "lost": None if any(run["lost"] is None for run in found) else sum(run["lost"] for run in found),
        "staleness_max": max(run["staleness"]["max"] for run in found),
    }


def busy_s() -> float:
    """Return the busy CPU seconds of this machine since its start."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0))


def own_s() -> float:
    """Return the CPU seconds of this process."""
    return sum(psutil.Process().cpu_times()[:2])


def machine_load(made: run_folder.RunFolder, busy: float) -> dict[str, float]:
    """Return the mean cores used by the run and by everything else."""
    phases = made.journal().phases
    start_ms, end_ms = phases[0].started_ms, phases[-1].ended_ms or phases[-1].started_ms
    own = sum(cpu_seconds(read_usage(made.path / "metrics" / USAGE_FILE), start_ms, end_ms).values())
    seconds = (end_ms - start_ms) / 1000
    return {
        "cores": available_cores(),
        "own_cores": round(own / seconds, 2),
        "other_cores": round(max(busy - own, 0.0) / seconds, 2),
    }
