"""A mode's real run before it begins: its bounds on the clock, and a configuration that survives being written."""

import importlib.util
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from benchmarks import decoupling_run, modes
from benchmarks.modes import MODES, DeploymentShape
from console.launch.supervisor import Supervisor
from console.runs import run_folder as folder

BASE = modes.load_workload(Path(__file__).parents[3] / "deploy/config/workload/desktop.toml", 50.0)
SHAPE = DeploymentShape(slots=16, workers=2, places=6, batch=2)


def deployment(mode, tmp_path: Path):
    config = decoupling_run.clock_config(modes.mode_config(BASE, mode, SHAPE, 3), 2.0)
    return msgspec.structs.replace(config, run=msgspec.structs.replace(config.run, state_dir=str(tmp_path)))


@pytest.mark.parametrize("mode", MODES)
def test_every_process_reads_what_was_meant(mode, tmp_path: Path):
    config = deployment(mode, tmp_path)
    written = folder.create(config, Path(BASE.tasks.file), "r", resume=False).config()
    for section in ("workload", "curation", "env", "rollout", "trainer"):
        assert getattr(written, section) == getattr(config, section)


def test_bounds_are_the_workloads_on_the_clock(tmp_path: Path):
    config, workload = deployment("dart", tmp_path), BASE.workload
    assert config.env.simulated.call_timeout_s == pytest.approx(workload.call_s / 50)
    assert config.env.episode_timeout_s > workload.episode_s / 50
    assert not config.evaluation.episodes
    assert not config.run.demonstrate


def test_only_the_modes_differ_and_only_in_what_makes_them():
    made = {mode: msgspec.to_builtins(modes.mode_config(BASE, mode, SHAPE, 3)) for mode in MODES}
    differ = {
        (section, key)
        for mode in MODES
        for section, table in made[mode].items()
        if isinstance(table, dict)
        for key, value in table.items()
        if value != made["dart"][section][key]
    }
    assert differ == {("curation", "dispatch"), ("rollout", "roll_width"), ("workload", "switch_s")}
    dispatch = [made[mode]["curation"]["dispatch"] for mode in MODES]
    assert {key for table in dispatch for key in table if table[key] != dispatch[0][key]} == {"mode"}


async def test_the_session_has_the_stand_in_trainer(tmp_path: Path):
    made = folder.create(deployment("coupled", tmp_path), Path(BASE.tasks.file), "r", resume=False)
    session = decoupling_run.session_of(made, Console(quiet=True), [])
    run = session.make_run(Supervisor(made.path, 1.0, print))
    (trainer,) = run.processes.trainer
    assert trainer.command[1:3] == ("-m", decoupling_run.TRAINER)
    assert importlib.util.find_spec(decoupling_run.TRAINER)
    assert len(run.processes.rollout) == SHAPE.workers
