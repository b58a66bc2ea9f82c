"""A run with a person who corrects, or without as the control, and its figures."""

import os
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import demonstration
from benchmarks.feedback import figures
from benchmarks.feedback.person import OraclePerson
from console.launch.session import Session
from console.launch.training_run import TrainingRun
from console.runs import run_folder
from console.runs.run_log import read_log
from console.runs.run_state import RunState
from dart_streams.background import run_beside
from dart_streams.config import Config
from dart_streams.config.tasks import load
from topics import curated, feedback, rollout_orders, trained, trajectories, weights, weights_serving

READ = tuple(one.TOPIC for one in (curated, feedback, rollout_orders, trained, trajectories, weights, weights_serving))


class CorrectedSession(Session):
    """A session beside which a person corrects rollouts."""

    person: OraclePerson

    async def go_through(self, run: TrainingRun) -> None:
        """Go through the phases while the person watches."""
        async with run_beside(self.person.correct(run)):
            await super().go_through(run)


def play(config: Config, limit: int, every_s: float) -> dict[str, Any]:
    """Make one run with at most ``limit`` corrections, and return its figures."""
    states: list[RunState] = []
    page = load(Path(config.tasks.file)).heldout[0].page

    def prepare(session: CorrectedSession) -> None:
        settings = session.folder.config()
        session.person = OraclePerson(settings, session.folder.tasks(), page, limit, every_s)

    def look(made: run_folder.RunFolder) -> None:
        states.append(RunState().fold(read_log(made.config().bus, READ)))

    report = demonstration.run_whole(config, CorrectedSession, prepare, look)
    [state] = states
    return {
        "page": page,
        **figures.latency_figures(state),
        **figures.lift_figures(state, page),
        "heldout": report["success_by_page"][page],
        "train_steps": report["train_steps"],
        "episodes": report["episodes"],
        "load_average": os.getloadavg()[2],
        "machine": report["machine"],
        "folder": report["folder"],
    }


def shorten(config: Config, minutes: float, state: Path) -> Config:
    """Return a configuration with this length of training and folder of runs."""
    replace = msgspec.structs.replace
    return replace(config, run=replace(config.run, minutes=minutes, state_dir=str(state)))
