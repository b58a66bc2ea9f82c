"""A circle survives faults of all parts at once: killed processes, republished topics.

Each ends with every process killed and started once more, an orderly end, and the invariants of the run.
"""

import contextlib
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from console.launch.session import InterruptedRun
from dart_streams.bus import sync_clients
from dart_streams.config import Config
from dart_streams.config.env import Simulated
from dart_streams.deadline import Deadline
from tests.faults import invariants, outsiders
from tests.faults.circle import circle, config_of
from topics import trajectories
from topics.observations import Observation
from topics.trajectories import Trajectory

pytestmark = pytest.mark.timeout(900)
LONG_EPISODES = Simulated(step_ms=400.0)
"""Longer than the time between two commits: a kill then finds orders that are taken, and may not be committed, and what
comes again finds open groups."""
SEND_S = 60.0
POLL_MS = 200


def test_everything_is_killed_at_once_and_the_run_goes_on_when_resumed(services, tmp_path: Path):
    with circle(config_of(services, tmp_path, env={"simulated": LONG_EPISODES}), "everything-killed") as running:
        running.kill_everything()
        observed = invariants.read(running.config).all(Observation)
        ended = {one.trajectory_id for one in observed if one.end is not None}
        assert {one.trajectory_id for one in observed} - ended, "nothing was under way that a kill could lose"
        begin = time.monotonic()
        running.resume()
        running.goes_on()
        running.measured["recovery_s"] = round(time.monotonic() - begin, 1)
        running.is_killed_once_more_and_ends_well()


@pytest.fixture
def hangs_up() -> Iterator[None]:
    """Have children take SIGHUP, which ``nohup`` before these tests would have them ignore."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangs_up")
def test_a_closed_terminal_ends_a_run_in_order_and_lost_output_does_not(services, tmp_path: Path):
    with circle(config_of(services, tmp_path), "terminal") as running:
        begun = running.processes()
        assert running.process is not None
        running.process.send_signal(signal.SIGHUP)
        assert running.exit_code() == InterruptedRun.exit_code, running.evidence()
        assert "interrupted; resume it with" in running.said()
        assert running.made.journal().outcome == "interrupted" and not any(map(psutil.Process.is_running, begun))
        running.resume(stdout=subprocess.PIPE)
        assert running.process.stdout is not None
        assert running.process.stdout.readline()
        running.process.stdout.close()
        running.goes_on()
        logs, away = running.made.path / "logs", running.made.path / "away"
        logs.rename(away)
        for process in running.of_kind("env"):
            process.kill()
        running.until(lambda: "not started" in (away / "supervisor.log").read_text(), "a start that fails")
        away.rename(logs)
        begin = time.monotonic()
        running.goes_on()
        running.measured["recovery_s"] = round(time.monotonic() - begin, 1)
        running.is_killed_once_more_and_ends_well()


def repeats_in_open_groups(config: Config) -> list[str]:
    """Return the trajectories that came again before the last of their group's orders had finished."""
    first: dict[str, int] = {}
    closed_at: dict[str, int] = {}
    finishes = invariants.read(config).all(Trajectory)
    for place, one in enumerate(finishes):
        if first.setdefault(one.trajectory_id, place) == place:
            closed_at[one.group_id] = place
    return [
        one.trajectory_id
        for place, one in enumerate(finishes)
        if first[one.trajectory_id] < place < closed_at[one.group_id]
    ]


def publish_at_once_again(config: Config, count: int) -> None:
    """Publish each of the next finished trajectories once more as soon as it is there: its group is open still."""
    with (
        sync_clients.TopicReader(config.bus, "again", trajectories.TOPIC) as reader,
        contextlib.closing(sync_clients.create_producer(config.bus, "again")) as producer,
    ):
        past = {record.value for record in reader.read_to_end()}
        deadline, sent = Deadline(SEND_S), set[bytes]()
        while len(sent) < count and not deadline.expired:
            for record in reader.poll(POLL_MS):
                if record.value not in past | sent:
                    sent.add(record.value)
                    producer.send(record.topic, value=record.value, key=record.key, partition=record.partition)
            producer.flush(timeout=SEND_S)


def comes_again_in_an_open_group(config: Config) -> bool:
    """Publish some trajectories again at once; say whether one has come while its group was open."""
    publish_at_once_again(config, config.curation.budget.base)
    return bool(repeats_in_open_groups(config))


def test_every_record_of_every_topic_comes_again_with_and_without_headers(services, tmp_path: Path):
    with circle(config_of(services, tmp_path, env={"simulated": LONG_EPISODES}), "republished") as running:
        begin = time.monotonic()
        for has_headers in (lambda _: True, lambda _: False):
            outsiders.every_record_again(running, has_headers)
        running.until(lambda: comes_again_in_an_open_group(running.config), "a repeat that a group could count")
        running.goes_on()
        running.measured["recovery_s"] = round(time.monotonic() - begin, 1)
        running.is_killed_once_more_and_ends_well()
