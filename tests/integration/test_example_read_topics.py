"""The example of an external consumer, on a real broker and in a process of its own."""

import contextlib
import subprocess
import sys

from benchmarks.curation_world import Odds, SimulatedCircle, task_set
from dart_streams.bus.codec import encode
from dart_streams.bus.sync_clients import create_producer
from dart_streams.config import parse
from tests.sources import ROOT
from topics import BY_NAME, trajectories

IDLE_MS = 30_000
"""The first record has to come within it too, on a machine that does other things at the same time."""


def test_the_printed_means_are_those_of_what_was_published(services):
    bus = services.config().bus
    circle = SimulatedCircle(parse({}), task_set(3), Odds(faults=0.1))
    for _ in range(60):
        circle.settle()
        circle.end_one(0)
    events = [written.event for written in circle.logs[trajectories.TOPIC.name]]
    with contextlib.closing(create_producer(bus, "example")) as kafka:
        for event in events:
            record = encode(BY_NAME["trajectories"], event, (), event.trajectory_id)
            kafka.send(bus.prefix + "trajectories", key=record.key, value=record.value, headers=list(record.headers))
        kafka.send(bus.prefix + "trajectories", value=b"{}", headers=[("schema", b"trajectories/99")])
        kafka.flush()
    code = f"from examples import read_topics; read_topics.main({bus.servers!r}, {bus.prefix!r}, {IDLE_MS})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    rewarded = [event for event in events if event.reward is not None]
    assert 0 < len(rewarded) < len(events)
    for task_id in {event.task_id for event in rewarded}:
        mine = [event for event in rewarded if event.task_id == task_id]
        mean, steps = sum(e.reward for e in mine) / len(mine), sum(e.steps for e in mine) / len(mine)
        assert f"{task_id}: mean reward {mean:.2f} of {len(mine)} rollouts, {steps:.1f} steps" in done.stdout
    assert "unknown schema 'trajectories/99'" in done.stderr
