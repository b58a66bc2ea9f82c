"""Each fault in a circle of its own, with private services, networks and disks where it damages them."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dart_streams import crash_points
from dart_streams.bus import admin
from dart_streams.store import connect
from tests.faults import scene
from tests.faults.broken_environments import BROKEN, EPISODE_S, break_environments, breaking, check_breaks
from tests.faults.circle import ROOT, circle, config_of
from tests.faults.network import BROKER, DATABASE
from tests.faults.scene import Fault, Site
from topics import BY_NAME

pytestmark = pytest.mark.timeout(3600)
SHIFTED = ROOT / "tests" / "integration" / "shifted_clock.py"
LASTS_S = 40.0
SESSION_S = 25.0
"""Longer than a broker's session with its controller (9 s): it is fenced meanwhile."""
MINUTE_S = 60.0
"""Longer than the clients of a service wait for it: a member of a group is thrown out, a worker gives up and ends."""

CASES: dict[str, list[Fault]] = {
    "frozen": [scene.frozen(kind, LASTS_S) for kind in ("env", "recorder", "rollout", "curator", "trainer", "monitor")],
    "networks": [
        *(
            scene.cut(kind, BROKER, way, LASTS_S)
            for kind, way in (("recorder", "in"), ("curator", "out"), ("env", "both"), ("rollout", "in"))
        ),
        *(scene.cut("recorder", DATABASE, way, LASTS_S) for way in ("in", "both")),
    ],
    "disks": [scene.run_disk_full(LASTS_S), scene.log_disk_full(5.0)],
    "services": [
        scene.service_frozen("cassandra", LASTS_S),
        scene.service_killed("cassandra", 3.0),
        scene.service_killed("kafka", 3.0),
    ],
    "broker-frozen": [scene.service_frozen("kafka", SESSION_S)],
    "frozen-services": [scene.service_frozen(name, MINUTE_S) for name in ("kafka", "cassandra")],
    "topics": [scene.rebalance_storm(3), scene.PARTITIONS_DOUBLED, scene.topic_deleted(8.0)],
}


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with scene.site() as made:
        yield made


@pytest.mark.parametrize("case", CASES)
def test_a_circle_goes_on_after_each_fault_and_keeps_every_rule(site: Site, case: str):
    faults = [fault for fault in CASES[case] if not fault.reason]
    if not faults:
        pytest.skip(CASES[case][0].reason)
    with circle(config_of(site, site.folder), case, site.prefixes) as running:
        scene.endure(running, site, faults)
        running.is_killed_once_more_and_ends_well()


LETHAL = "simulated/box#3"


def test_broken_environments_cost_their_episodes_and_no_more(services, tmp_path: Path):
    """One task's environment ends the worker, as a crash in a C library does: three times, and no more."""
    config = config_of(services, tmp_path / "state", env={"episode_timeout_s": EPISODE_S})
    kinds = (*BROKEN, "set aside")
    with circle(config, "environments", {"env": breaking(LETHAL)}) as running:
        break_environments(running, kinds, {("env-0", "killed by SIGSEGV"): 3})
        running.is_killed_once_more_and_ends_well()
        check_breaks(running, kinds)


OFF_S = {
    "env": (600, -1200),
    "recorder": (-600, 1200),
    "rollout": (-600, 1200),
    "curator": (600, 0),
    "monitor": (-600, 0),
}
"""How far the clock of each kind of process is off, and by how much it jumps in mid-run (seconds).

The rollout worker is behind the environment worker at first, and ahead of it then: neither may make a request late.
"""


def test_a_circle_of_hosts_whose_clocks_are_minutes_apart_and_jump_goes_on(services, tmp_path: Path):
    shifted = {kind: (sys.executable, str(SHIFTED), *map(str, off)) for kind, off in OFF_S.items()}
    with circle(config_of(services, tmp_path / "state"), "clocks-apart", shifted) as running:
        running.goes_on(4)
        scene.send(
            [one for kind in OFF_S for one in running.of_kind(kind)], lambda one: one.send_signal(signal.SIGUSR1)
        )
        running.measured["recovery_s"] = round(running.goes_on(4), 1)
        running.is_killed_once_more_and_ends_well()


def test_a_dropped_table_is_named_and_comes_back_from_the_log(services, tmp_path: Path):
    with circle(config_of(services, tmp_path / "state"), "table-dropped") as running:
        session = connect(running.config.store)
        session.execute("DROP TABLE steps", timeout=60)
        session.cluster.shutdown()
        begin = time.monotonic()
        running.until(lambda: "table steps is gone from the store" in running.said(), "the table is named")
        rebuild = ["store", "rebuild", "--run", running.made.id, "--state", str(tmp_path / "state")]
        subprocess.run([sys.executable, "-m", "console.cli.main", *rebuild], cwd=ROOT, check=False)
        running.goes_on()
        running.measured["recovery_s"] = round(time.monotonic() - begin, 1)
        running.is_killed_once_more_and_ends_well()


def test_a_run_whose_trajectories_are_given_partitions_ends_with_advice(services, tmp_path: Path):
    with circle(config_of(services, tmp_path / "state"), "trajectories-grown") as running:
        bus = running.config.bus
        with admin.connect(bus) as client:
            client.create_partitions({f"{bus.prefix}trajectories": 2 * BY_NAME["trajectories"].partitions})
        begin = time.monotonic()
        running.ends_with_an_error()
        running.measured["recovery_s"] = round(time.monotonic() - begin, 1)
        for message in (f"topic {bus.prefix}trajectories was given partitions during the run", "go on as a new run"):
            assert message in running.said()
        running.console.write_text("")
        running.resume()
        running.ends_with_an_error()
        assert "go on as a new run" in running.said(), "it would go on with split groups"


AT = {"recorder": 6, "env": 12, "rollout": 20, "curator": 8}
"""The pass of a place at which a process dies; with what the restarts repeat, all of them are reached."""


def test_every_process_is_killed_before_and_after_each_durable_effect(
    services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    deaths = tmp_path / "deaths"
    places = [f"{place}:{AT[place.partition('-')[0]]}" for place in crash_points.WORKERS]
    monkeypatch.setenv(crash_points.ENVIRONMENT, ",".join(places))
    monkeypatch.setenv(crash_points.LOG, str(deaths))
    with circle(config_of(services, tmp_path / "state"), "crash-points") as running:
        begin = time.monotonic()
        running.until(lambda: deaths.exists() and len(deaths.read_text().split()) == len(places), "all places")
        running.goes_on()
        running.measured["recovery_s"] = round(time.monotonic() - begin, 1)
        running.is_killed_once_more_and_ends_well()
    assert sorted(deaths.read_text().split()) == sorted(crash_points.WORKERS)
