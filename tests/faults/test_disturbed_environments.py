"""A circle whose environments raise, return NaN and hang: no order is lost, no worker ends, and each is counted.

In full one task's environment also ends the worker, as a crash in a C library does: three times, and no more.
"""

import json
import sys
from pathlib import Path

import pytest

from tests.faults.circle import WHOLE, Circle, circle, config_of

pytestmark = pytest.mark.timeout(900)
RATE = 0.02 if WHOLE else 0.1
LETHAL = "simulated/box#3" if WHOLE else ""
EPISODE_S = 5.0
"""How long a call that hangs holds its slot."""
KINDS = ("() raised ", "() returned nan", "straggler", *(["set aside"] if WHOLE else []))


def deaths(running: Circle) -> dict[tuple[str, str], int]:
    """How often each process has died in each way."""
    return {(one.process, one.reason): one.times for one in running.made.journal().deaths}


def test_broken_environments_cost_their_episodes_and_no_more(services, tmp_path: Path):
    settings = json.dumps({"rate": RATE, "lethal": LETHAL, "healthy_s": 0.0})
    config = config_of(services, tmp_path / "state", env={"episode_timeout_s": EPISODE_S})
    disturbed = {"env": (sys.executable, "-m", "tests.faults.disturbed_env", settings)}
    with circle(config, "environments", disturbed) as running:
        log = running.made.path / "logs" / "env-0.log"
        running.until(lambda: all(kind in log.read_text() for kind in KINDS), "each kind of fault")
        running.measured["recovery_s"] = round(running.goes_on(), 1)
        assert deaths(running) == ({("env-0", "killed by SIGSEGV"): 3} if LETHAL else {})
        running.is_killed_once_more_and_ends_well()
        report = json.loads((running.made.path / "report.json").read_text())
    for kind in KINDS:
        assert any(kind in found for found in report["env_fault_kinds"]), report["env_fault_kinds"]
    assert report["trajectories"]["by_outcome"]["env_error"] > 0
    assert bool(report["deaths"]) is bool(LETHAL)
