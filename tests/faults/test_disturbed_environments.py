"""A circle whose environments raise, return NaN, hang, and end their worker: no order is lost, and each is counted."""

import json
import sys
from pathlib import Path

import pytest

from tests.faults.circle import WHOLE, circle, config_of

pytestmark = pytest.mark.timeout(900)
RATE = 0.02 if WHOLE else 0.1
LETHAL = "simulated/box#3"
EPISODE_S = 10.0
"""How long a call that hangs holds its slot."""


def test_environments_that_raise_return_nan_hang_or_end_their_worker_cost_their_episodes_and_no_more(
    services, tmp_path: Path
):
    settings = json.dumps({"rate": RATE, "lethal": LETHAL, "healthy_s": 0.0})
    config = config_of(services, tmp_path / "state", env={"episode_timeout_s": EPISODE_S})
    disturbed = {"env": (sys.executable, "-m", "tests.faults.disturbed_env", settings)}
    with circle(config, "environments", disturbed) as running:
        log = running.made.path / "logs" / "env-0.log"
        running.until(lambda: "order set aside" in log.read_text(), "the order that ends its worker is set aside")
        running.measured["recovery_s"] = round(running.goes_on(), 1)
        deaths = running.made.journal().deaths
        assert {(one.process, one.reason) for one in deaths} == {("env-0", "killed by SIGSEGV")}, "of that order alone"
        running.is_killed_once_more_and_ends_well()
        report = json.loads((running.made.path / "report.json").read_text())
    kinds = " ".join(report["env_fault_kinds"])
    for of_kind in ("() raised ", "() returned nan", "straggler", "set aside"):
        assert of_kind in kinds
    assert report["deaths"][0]["process"] == "env-0"
    assert report["trajectories"]["by_outcome"]["env_error"] > 0
