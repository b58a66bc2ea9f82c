"""Comparisons with peers: what is counted, what both sides of a training run share, and what peers' programs import."""

import ast
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import pytest

from benchmarks import modes
from benchmarks.peers import browsers, contestants, trainers
from benchmarks.peers.contestants import SlotTurn, Turn
from benchmarks.peers.plays import Play
from dart_streams.config.tasks import TaskSet, load
from tests.sources import ROOT

FOLDER = ROOT / "benchmarks/peers"
BASE = modes.load_config(ROOT / "deploy/config/demo.toml")
PROGRAMS = {
    "browsergym_player.py": {"playwright", "browsergym"},
    "trl_trainer.py": {"torch", "datasets", "PIL", "transformers", "trl"},
}
PLAYS = [Play("click-test", 1, ((80, 100),), True, 1.0), Play("click-tab", 2, ((10, 60),), False, 0.0)]


def turn(cpu_s: float, *slots: tuple[float, int], ends: list[tuple[int, bool, float]] | None = None) -> Turn:
    """A turn of environments, each with its seconds and steps."""
    own = [SlotTurn(seconds, [0.1], [0.05] * steps, ends or []) for seconds, steps in slots]
    return Turn(own, {"python": 0.0, "node": 0.0, "chromium": cpu_s})


def test_environments_count_at_their_own_pace_and_ratios_by_round():
    assert turn(1.0, (2.0, 4), (4.0, 4)).steps_per_s == 3.0
    assert turn(1.0, (2.0, 4), (4.0, 6)).core_ms() == 100.0
    turns = {"ours": [turn(1.0, (1.0, 10)), turn(1.0, (1.0, 20))], "peer": [turn(4.0, (1.0, 5)), turn(1.0, (1.0, 20))]}
    ratios = browsers.compare_contestants(turns, "ours")
    assert ratios["peer"]["steps_per_s"] == [0.75, 0.5, 1.0]
    assert ratios["peer"]["core_ms_per_step"] == [4.5, 1.0, 8.0]
    assert "ours" not in ratios


def test_an_episode_is_the_same_only_with_the_recorded_end_and_reward():
    ends = [(0, True, 1.0), (0, True, 0.5), (1, False, 0.0), (1, True, 0.0)]
    found = browsers.contestant_metrics([turn(1.0, (1.0, 4), ends=ends)], PLAYS)
    assert (found["episodes"], found["same_reward"]) == (4, 2)


def test_cpu_time_of_a_child_that_has_ended_counts():
    root = psutil.Process()
    before = contestants.cpu_s(root)
    burn = "import time\nwhile time.process_time() < 0.4: pass"
    subprocess.run([sys.executable, "-c", burn], check=True)
    spent = contestants.cpu_difference(before, contestants.cpu_s(root))
    assert spent["chromium"] >= 0.35


def test_the_common_deployment_has_single_action_pages_and_seeds(tmp_path: Path):
    known = load(Path(BASE.tasks.file))
    tasks = TaskSet([page for page in known.pages if page.max_steps == 1])
    config = trainers.single_steps(BASE, tasks, tmp_path, 3.0, tmp_path)
    written = load(Path(config.tasks.file))
    assert {task.page for task in written.train} == {page.page for page in known.pages if page.max_steps == 1}
    assert written.heldout == tasks.heldout
    assert config.evaluation.episodes == len(written.heldout)
    common = msgspec.structs.replace(config, tasks=BASE.tasks, run=BASE.run, policy=BASE.policy)
    assert common == msgspec.structs.replace(BASE, evaluation=config.evaluation)


def test_the_settings_are_those_that_the_trainer_of_trl_takes(tmp_path: Path):
    tree = ast.parse((FOLDER / "trl_trainer.py").read_text())
    (settings,) = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == "Settings")
    fields = {node.target.id for node in settings.body if isinstance(node, ast.AnnAssign)}  # type: ignore[union-attr]
    assert set(trainers.trl_settings(BASE, load(Path(BASE.tasks.file)), 0, tmp_path)) == fields


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_peer_s_program_imports_its_peer_and_the_standard_library_only(program: str):
    nodes = list(ast.walk(ast.parse((FOLDER / program).read_text())))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)]
    assert {name.partition(".")[0] for name in names} - PROGRAMS[program] <= sys.stdlib_module_names
