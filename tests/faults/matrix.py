"""Run the cases of the fault matrix a number of times, and print the outcomes.

Usage: ``python -m tests.faults.matrix [--case NAME …] [--runs N] [--json FILE]``. The services are started once for
all; a case that needs to mistreat one has its own.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.private_services import ENVIRONMENT, private_services
from tests.faults.circle import RESULTS
from tests.faults.orderly_end import run_to_its_end, unwind_at_sigterm
from tests.sources import ROOT

WHOLE = "tests/faults/full/test_whole_circle.py"
CIRCLES = "tests/faults/full/test_disturbed_circle.py"
DISTURBED = f"{CIRCLES}::test_a_circle_goes_on_after_each_fault_and_keeps_every_rule"
OUTSIDERS = "tests/faults/full/test_outsiders.py"
MODEL = "tests/faults/full/test_model_circle.py"
ENGINE = "test_faults_of_engine_screenshots_and_weights_are_named_and_survived"
TRAINER = "test_the_trainer_survives_network_and_disk_faults_and_names_torn_rows"
ENVIRONMENTS = "test_broken_environments_cost_their_episodes_and_no_more"
KILLS = "tests/model/test_trainer_kills.py"
OF_TRAINER = (
    f"{KILLS}::test_a_killed_trainer_learns_what_an_undisturbed_one_learns",
    f"{KILLS}::test_frozen_trainers_that_were_replaced_change_nothing",
    *(
        f"tests/model/test_trainer_run.py::{test}"
        for test in (
            "test_of_two_trainers_the_older_stops",
            "test_a_full_disk_is_named_and_every_group_is_trained_once",
            "test_damaged_weights_end_the_trainer_and_a_restart_writes_them",
        )
    ),
)
OF_VERSIONS = (
    f"{KILLS}::test_killed_anywhere_each_delta_is_the_trainers_to_the_bit",
    f"{KILLS}::test_frozen_trainers_that_were_replaced_change_nothing",
    "tests/model/test_trainer_deltas.py",
    "tests/model/test_resident_weights.py",
    "tests/model/test_adapters.py",
)
CASES = {
    "everything-killed": (f"{WHOLE}::test_everything_is_killed_at_once_and_the_run_goes_on_when_resumed",),
    "terminal": (f"{WHOLE}::test_a_closed_terminal_ends_a_run_in_order_and_lost_output_does_not",),
    "republished": (f"{WHOLE}::test_every_record_of_every_topic_comes_again_with_and_without_headers",),
    **{
        case: (f"{DISTURBED}[{case}]",)
        for case in ("frozen", "networks", "disks", "services", "broker-frozen", "frozen-services", "topics")
    },
    "clocks-apart": (f"{CIRCLES}::test_a_circle_of_hosts_whose_clocks_are_minutes_apart_and_jump_goes_on",),
    "table-dropped": (f"{CIRCLES}::test_a_dropped_table_is_named_and_comes_back_from_the_log",),
    "trajectories-grown": (f"{CIRCLES}::test_a_run_whose_trajectories_are_given_partitions_ends_with_advice",),
    "outsiders": (
        f"{OUTSIDERS}::test_a_circle_heals_from_outsiders_and_counts_the_lost_orders",
        f"{OUTSIDERS}::test_a_run_whose_topics_are_gone_is_not_resumed",
    ),
    "topics-anew": (f"{OUTSIDERS}::test_a_circle_goes_on_when_a_topic_is_made_anew",),
    "crash-points": (f"{CIRCLES}::test_every_process_is_killed_before_and_after_each_durable_effect",),
    "environments": (f"{CIRCLES}::{ENVIRONMENTS}",),
    "engine": (f"{MODEL}::{ENGINE}",),
    "trainer": (f"{MODEL}::{TRAINER}",),
    "poison": ("tests/faults/test_poison.py",),
    "two-curators": ("tests/integration/test_curator.py",),
    "clocks": ("tests/integration/test_clocks.py",),
    "workers-frozen": ("tests/integration/test_freezes.py",),
    "topics-gone": ("tests/integration/test_topics_gone.py",),
    "browser": ("tests/integration/test_miniwob_faults.py",),
    "browser-memory": ("tests/integration/test_miniwob_memory.py",),
    "screenshots": ("tests/integration/test_env_worker.py",),
    "weights-refused": ("tests/integration/test_rollout_worker.py",),
    "down-under-a-run": ("tests/unit/console/cli/test_runs.py::test_services_of_a_run_under_way_are_not_stopped",),
    "listener": ("tests/unit/bus/test_advertised_listeners.py",),
    "strangers": ("tests/unit/connection/test_http_bounds.py",),
    "services-start": ("tests/launch/test_services_survive.py",),
    "one-folder": ("tests/unit/console/launch/test_session.py", "tests/unit/console/runs/test_run_folder.py"),
    "two-writers": (
        "tests/unit/workers/curator/test_journal_ownership.py",
        "tests/unit/workers/curator/test_two_curators.py",
    ),
    "trainer-killed": OF_TRAINER,
    "versions-killed": OF_VERSIONS,
    "ranks-killed": ("tests/model/test_trainer_ranks.py",),
    "checkpoints-damaged": ("tests/model/test_checkpoint.py",),
    "not-finite": ("tests/model/test_trainer_diverges.py", "tests/model/test_finite.py"),
    "weights-away": ("tests/model/test_weight_storage.py",),
    "weights-strangers": ("tests/model/test_trainer_strangers.py",),
    "engine-thread": ("tests/model/test_engine_thread.py", "tests/model/test_vllm_engine.py"),
}
"""The tests of each case. Those of ``tests/model`` run in the model's environment."""


class Row(msgspec.Struct):
    """A case: its runs, the seconds that each took, and what each measured."""

    case: str
    runs: int = 0
    passed: int = 0
    seconds: list[float] = []
    recovery_s: list[float] = []
    restart_s: list[float] = []

    def add(self, *, passed: bool, seconds: float, measured: Iterable[dict[str, Any]]) -> None:
        """Count a run."""
        self.runs += 1
        self.passed += passed
        self.seconds.append(round(seconds, 1))
        for line in measured:
            self.recovery_s += [line["recovery_s"]] if "recovery_s" in line else []
            self.restart_s += [line["restart_s"]] if "restart_s" in line else []


def interpreter(case: str) -> str:
    """Return the Python that runs a case's tests: this one, or that of the environment of tests/model."""
    of_the_model = CASES[case][0].startswith("tests/model/")
    return str(ROOT / ".venv" / "model" / "bin" / "python") if of_the_model else sys.executable


def run(case: str, environment: dict[str, str]) -> tuple[bool, list[dict[str, Any]]]:
    """Run a case once; return whether it passed, and what it measured."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.jsonl"
        command = [interpreter(case), "-m", "pytest", "-q", "-x", *CASES[case]]
        whole = {"DART_SLOW_TESTS": "1", RESULTS: str(results)}
        code = run_to_its_end(command, {**environment, **whole}, ROOT)
        lines = results.read_text().splitlines() if results.exists() else []
    return code == 0, [json.loads(line) for line in lines]


def shown(values: list[float]) -> str:
    """Return the median and the largest of some seconds."""
    return f"{statistics.median(values):.1f} / {max(values):.1f}" if values else ""


def table(rows: Iterable[Row]) -> Table:
    made = Table("case", "passed", "s a run", "s to recover", "s to restart", title="p50 / max")
    for row in rows:
        times = map(shown, (row.seconds, row.recovery_s, row.restart_s))
        made.add_row(row.case, f"{row.passed} of {row.runs}", *times)
    return made


def main(arguments: list[str]) -> int:
    """Run the cases; return 1 if a run has failed."""
    parser = argparse.ArgumentParser(prog="matrix")
    parser.add_argument("--case", choices=list(CASES), action="append", help="only this one; may be given again")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the rows to this file as well")
    wanted = parser.parse_args(arguments)
    rows = [Row(case) for case in wanted.case or CASES]
    with private_services() as config:
        services = f"{config.bus.servers},{config.store.hosts[0]}:{config.store.port}"
        for row in rows:
            for _ in range(wanted.runs):
                begin = time.monotonic()
                passed, measured = run(row.case, {**os.environ, ENVIRONMENT: services})
                row.add(passed=passed, seconds=time.monotonic() - begin, measured=measured)
                if wanted.json:
                    wanted.json.parent.mkdir(parents=True, exist_ok=True)
                    wanted.json.write_bytes(msgspec.json.format(msgspec.json.encode(rows)))
    Console().print(table(rows))
    return int(any(row.passed < row.runs for row in rows))


if __name__ == "__main__":
    unwind_at_sigterm()
    sys.exit(main(sys.argv[1:]))
