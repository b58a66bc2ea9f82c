"""Whole runs and their summary: when training ends, and the table of several runs."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from benchmarks import demonstration, modes
from benchmarks.curation_world import Odds, play
from console.launch.processes import ProcessSet
from console.launch.supervisor import Supervisor
from console.runs import run_folder
from console.runs.run_state import RunState
from tests import events
from topics.rollout_orders import RolloutOrder

BASE = modes.load_config(Path(__file__).parents[3] / "deploy/config/demo.toml")


def order(number: int, purpose: str) -> RolloutOrder:
    return events.rollout_order(f"{purpose}-{number}", purpose=purpose)


def state_after(train: int, other: int) -> RunState:
    state = RunState()
    for purpose, count in (("train", train), ("eval", other), ("demonstration", other)):
        ended = [play(order(number, purpose), 0, Odds(), 0) for number in range(count)]
        state.finished |= {one.order_id: one for one in ended}
    return state


def ends(folder: Path, episodes: int | None, state: RunState) -> bool:
    """Return whether the training phase of a session would end in this state."""

    async def asked() -> bool:
        config = msgspec.structs.replace(BASE, run=msgspec.structs.replace(BASE.run, state_dir=str(folder)))
        made = run_folder.create(config, Path(config.tasks.file), "r", resume=False)
        session = demonstration.EpisodeSession(made, ProcessSet(), demonstration_finish, Console(quiet=True))
        session.episodes = episodes
        return session.make_run(Supervisor(made.path, 1.0)).enough(state)

    return asyncio.run(asked())


async def demonstration_finish(_: object) -> None:
    """Report nothing."""


@pytest.mark.parametrize(
    ("bound", "train", "ended"), [(None, 50, False), (10, 9, False), (10, 10, True), (10, 11, True)]
)
def test_training_ends_after_the_bound_of_training_episodes(tmp_path: Path, bound: int | None, train: int, ended: bool):
    """Evaluations and demonstrations are no training episodes."""
    assert ends(tmp_path, bound, state_after(train, other=40)) is ended


def report(before: float, after: float, lost: int = 0, staleness: int = 1) -> dict[str, object]:
    return {
        "success_before": before,
        "success_after": after,
        "lost": lost,
        "staleness": {"mean": 0.1, "max": staleness},
        "episodes": 3000,
        "per_task": {"click-test": {"before": {"rate": before}, "after": {"rate": after}}},
        "further_temperatures": [{"temperature": 0.0, "change": {"mean": 0.1}}],
    }


def test_the_summary_has_median_worst_and_invariants():
    found = [
        demonstration.report_metrics(report(0.4, after, lost, staleness))
        for after, lost, staleness in ((0.7, 0, 1), (0.6, 2, 1), (0.9, 0, 3))
    ]
    assert [run["gain"] for run in found] == [0.3, 0.2, 0.5]
    assert found[0]["gain_at_temperature"] == {0.0: 0.1}
    assert found[0]["success_by_page"] == {"click-test": [0.4, 0.7]}
    gains = {"gain_median": 0.3, "gain_worst": 0.2, "gain_best": 0.5}
    assert demonstration.summarize_runs(found) == {"runs": 3, "lost": 2, "staleness_max": 3} | gains


def test_machine_cpu_time_grows_and_contains_this_process():
    machine, own = demonstration.busy_s(), demonstration.own_s()
    while (spent := demonstration.own_s() - own) < 0.2 or (spent < 60 and demonstration.busy_s() - machine <= 0.1):
        sum(range(100_000))
    assert demonstration.busy_s() - machine > 0.1
