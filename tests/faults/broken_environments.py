"""A circle whose environments break: what starts its workers so, and what its log and report say of it."""

import json
import sys
from collections.abc import Mapping, Sequence

from tests.faults.circle import Circle

RATE = 0.02
"""The share of an environment's calls that raise, return NaN or hang."""
EPISODE_S = 5.0
"""How long a call that hangs holds its slot."""
BROKEN = ("() raised ", "() returned nan", "straggler")


def breaking(lethal: str = "") -> tuple[str, ...]:
    """Return what precedes an environment worker's command line: its environments break."""
    settings = json.dumps({"rate": RATE, "lethal": lethal, "healthy_s": 0.0})
    return sys.executable, "-m", "tests.faults.disturbed_env", settings


def break_environments(running: Circle, kinds: Sequence[str], deaths: Mapping[tuple[str, str], int]) -> None:
    """Wait until environments have broken in each way and the circle goes on; only what ``deaths`` counts has died."""
    log = running.made.path / "logs" / "env-0.log"
    running.until(lambda: all(kind in log.read_text() for kind in kinds), "each kind of fault")
    running.measured["recovery_s"] = round(running.goes_on(), 1)
    assert {(one.process, one.reason): one.times for one in running.made.journal().deaths} == deaths


def check_breaks(running: Circle, kinds: Sequence[str]) -> None:
    """The report counts each kind of fault, and the episodes that they ended."""
    report = json.loads((running.made.path / "report.json").read_text())
    for kind in kinds:
        assert any(kind in found for found in report["env_fault_kinds"]), report["env_fault_kinds"]
    assert report["trajectories"]["by_outcome"]["env_error"] > 0
