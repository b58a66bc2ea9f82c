"""One circle with private services, networks and disks survives each kind of fault, and heals from outsiders.

The tests are one story, in this order. ``tests/faults/full`` has each fault in a circle of its own, for longer.
"""

import json
import signal
import time
from collections.abc import Iterator

import psutil
import pytest

from tests.faults import outsiders, scene, soak
from tests.faults.broken_environments import BROKEN, EPISODE_S, break_environments, breaking, check_breaks
from tests.faults.circle import KINDS, Circle, circle, config_of
from tests.faults.network import BROKER, DATABASE
from tests.faults.scene import Site

pytestmark = pytest.mark.timeout(3600)
LASTS_S = 12.0
"""Longer than a broker's session with its controller (9 s): it is fenced meanwhile."""
FAULTS = [
    scene.Fault(
        "republished", lambda circle, _: outsiders.every_record_again(circle, lambda n: n % 2 == 0), scene.nothing, 0.0
    ),
    scene.cut("recorder", BROKER, "in", LASTS_S),
    scene.cut("curator", BROKER, "out", LASTS_S),
    scene.cut("recorder", DATABASE, "both", LASTS_S),
    scene.run_disk_full(6.0),
    scene.log_disk_full(5.0),
    scene.service_frozen("cassandra", LASTS_S),
    scene.service_killed("cassandra", 3.0),
    scene.service_frozen("kafka", LASTS_S),
    scene.rebalance_storm(3),
    scene.PARTITIONS_DOUBLED,
]
CAUSES = ("orders taken", "numbers far ahead", "header names", "observations removed")


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with scene.site() as made:
        yield made


@pytest.fixture(scope="module")
def running(site: Site) -> Iterator[Circle]:
    prefixes = site.prefixes | {"env": (*site.prefixes.get("env", ()), *breaking())}
    with circle(config_of(site, site.folder, env={"episode_timeout_s": EPISODE_S}), "short", prefixes) as made:
        yield made


def test_it_goes_on_after_each_fault(site: Site, running: Circle):
    break_environments(running, BROKEN, {})
    scene.endure(running, site, [fault for fault in FAULTS if not fault.reason])
    used = soak.settled(running, site, time.monotonic(), slots=1)
    assert set(used.usage) == {*KINDS, "supervisor"}, "what a soak bounds can be measured"
    assert not soak.passed([used, used], slots=1)


def test_an_interrupt_drains_within_its_bound_and_leaves_no_orphan(running: Circle):
    """Each process ends within the drain time; none has to be killed."""
    running.until(lambda: all(map(running.of_kind, KINDS)), "each kind of process")
    supervisor, *children = running.processes()
    assert len(children) >= 2 * len(KINDS), "a subreaper each"
    log = running.made.path / "logs" / "supervisor.log"
    before = len(log.read_text().splitlines())
    supervisor.send_signal(signal.SIGINT)
    running.ends_with_an_error()
    psutil.wait_procs(children, timeout=0)
    assert not [child for child in children if child.is_running()]
    lines = [json.loads(line) for line in log.read_text().splitlines()[before:]]
    ended = {line["child"]: line["reason"] for line in lines if line["event"] in ("stopped", "did not end")}
    assert len(ended) == len(KINDS)
    # One that has just been started may have no handler of signals yet.
    assert set(ended.values()) <= {"ended by itself (exit code 0)", "killed by SIGTERM"}, ended
    assert running.made.journal().outcome == "interrupted"
    running.resume()
    running.goes_on()


def test_it_ends_complete_and_keeps_every_rule(running: Circle):
    running.is_killed_once_more_and_ends_well()
    check_breaks(running, BROKEN)


def test_it_is_resumed_heals_from_outsiders_and_counts_the_lost_orders(running: Circle):
    running.resume()
    running.goes_on()
    outsiders.heal(running, CAUSES)
    running.is_killed_once_more_and_ends_well()
