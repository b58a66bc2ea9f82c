"""Comparisons with peers: what is counted, and what peers' programs import."""

import ast
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.peers import browsers, process_tree
from benchmarks.peers.contestants import SlotTurn, Turn
from benchmarks.peers.plays import Play

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "benchmarks/peers"
PROGRAMS = {
    "browsergym_player.py": {"playwright", "browsergym"},
}
PLAYS = [Play("click-test", 1, ((80, 100),), True, 1.0), Play("click-tab", 2, ((10, 60),), False, 0.0)]


def turn(cpu_s: float, *slots: tuple[float, int], ends: list[tuple[int, bool, float]] | None = None) -> Turn:
    """A turn of environments, each with its seconds and steps."""
    own = [SlotTurn(seconds, [0.1], [0.05] * steps, ends or []) for seconds, steps in slots]
    return Turn(own, {"python": 0.0, "node": 0.0, "chromium": cpu_s})


def test_environments_that_end_at_different_times_count_at_their_own_pace():
    assert turn(1.0, (2.0, 4), (4.0, 4)).steps_per_s == 3.0
    assert turn(1.0, (2.0, 4), (4.0, 6)).core_ms() == 100.0


def test_ratios_are_taken_round_by_round():
    turns = {"ours": [turn(1.0, (1.0, 10)), turn(1.0, (1.0, 20))], "peer": [turn(4.0, (1.0, 5)), turn(1.0, (1.0, 20))]}
    ratios = browsers.compared(turns, "ours")
    assert ratios["peer"]["steps_per_s"] == [0.75, 0.5, 1.0]
    assert ratios["peer"]["core_ms_per_step"] == [4.5, 1.0, 8.0]
    assert "ours" not in ratios


def test_an_episode_counts_as_the_same_only_with_the_recorded_end_and_reward():
    ends = [(0, True, 1.0), (0, True, 0.5), (1, False, 0.0), (1, True, 0.0)]
    found = browsers.figures([turn(1.0, (1.0, 4), ends=ends)], PLAYS)
    assert (found["episodes"], found["same_reward"]) == (4, 2)


def test_cpu_time_of_a_child_that_has_ended_counts():
    root = psutil.Process()
    before = process_tree.cpu_s(root)
    burn = "import time\nwhile time.process_time() < 0.4: pass"
    subprocess.run([sys.executable, "-c", burn], check=True, timeout=60)
    spent = process_tree.spent(before, process_tree.cpu_s(root))
    assert spent["chromium"] >= 0.35


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_peer_s_program_imports_its_peer_and_the_standard_library_only(program: str):
    imported = {
        name.partition(".")[0]
        for node in ast.walk(ast.parse((FOLDER / program).read_text()))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [str(node.module)]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported - PROGRAMS[program] <= sys.stdlib_module_names
