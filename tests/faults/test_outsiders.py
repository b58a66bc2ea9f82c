"""An outsider moves offsets, removes records or writes some: the circle heals, and reports what was lost."""

import time
from pathlib import Path

import pytest

from dart_streams.console.runs.run_log import read_events
from tests.faults import outsiders
from tests.faults.circle import WHOLE, Circle, circle, config_of
from topics import observations, trajectories

pytestmark = pytest.mark.timeout(3600)
in_full = pytest.mark.skipif(not WHOLE, reason="set DART_SLOW_TESTS=1")
CAUSES = {
    "orders taken": outsiders.taken_by_a_stranger("rollout-orders", "env", 8),
    "observations taken": outsiders.taken_by_a_stranger("observations", "recorder", 45),
    "numbers far ahead": outsiders.numbers_far_ahead,
    "header names": outsiders.header_names_that_are_no_text,
    "newer schema": outsiders.newer_schema,
    "observations removed": outsiders.observations_removed,
}
SHORT = ("orders taken", "numbers far ahead", "header names", "observations removed")


UNREAD = frozenset(
    {
        "a finished trajectory lacks a step",
        "a request has neither an action nor a time-out",
        "the store is not what the log makes of it",
    }
)
"""Rules that need each observation, in the log and read by the recorder."""
REMOVED = UNREAD | {
    "decided otherwise in the replay",
    "a group counts what is not its order's first finish",
    "a group is trained on that is not curated",
}
"""Rules that need what was in a topic before it was made anew."""


def lost(running: Circle) -> int:
    """Return how many orders have ended as lost."""
    return sum(event.outcome == "lost" for event in read_events(running.config.bus, [trajectories.TOPIC]))


def has_episode(running: Circle) -> bool:
    """Return whether an episode is under way: its newest observation is not its end, and nothing said that it ended."""
    bus = running.config.bus
    ended = {event.order_id for event in read_events(bus, [trajectories.TOPIC])}
    newest = {event.order.order_id: event.end for event in read_events(bus, [observations.TOPIC])}
    return any(end is None for order, end in newest.items() if order not in ended)


def test_a_circle_heals_from_outsiders_and_counts_the_lost_orders(services, tmp_path: Path):
    with circle(config_of(services, tmp_path / "state"), "outsiders") as running:
        running.loses_orders, running.excused = True, UNREAD
        recovery = running.measured["recovery"] = {}
        for name, cause in ((name, CAUSES[name]) for name in (CAUSES if WHOLE else SHORT)):
            cause(running)
            begin = time.monotonic()
            running.goes_on(3)
            recovery[name] = round(time.monotonic() - begin, 1)
        running.measured["recovery_s"] = max(recovery.values())
        running.until(lambda: lost(running), "an order that is found lost")
        running.until(lambda: "records gone before they were read" in running.logs(), "the removed records are named")
        running.until(lambda: "orders were lost" in running.console.read_text(), "the lost orders at the terminal")
        for one in running.of_kind("rollout"):
            one.suspend()  # So an episode is not over when all are killed.
        running.until(lambda: has_episode(running), "an episode that waits for its policy")
        running.kill_everything()
        outsiders.offsets_moved_to_the_end(running)
        before = lost(running)
        running.resume()
        running.until(lambda: lost(running) > before, "the orders between old and new offsets are found")
        running.goes_on(3)
        running.is_killed_once_more_and_ends_well()


@in_full
@pytest.mark.parametrize(
    "topic", ["trajectories", "task-difficulty", "rollout-budgets", "rollout-orders", "observations"]
)
def test_a_circle_goes_on_when_a_topic_is_made_anew(services, tmp_path: Path, topic: str):
    with circle(config_of(services, tmp_path / "state"), f"{topic}-anew") as running:
        running.loses_orders, running.excused = True, REMOVED
        outsiders.topic_made_anew(running.config.bus, topic)
        begin = time.monotonic()
        running.until(lambda: f"topic {running.config.bus.prefix}{topic} " in running.logs(), "the topic is named")
        running.goes_on(3)
        running.measured["recovery_s"] = round(time.monotonic() - begin, 1)
        running.is_killed_once_more_and_ends_well()


@in_full
def test_a_run_whose_topics_are_gone_is_not_resumed(services, tmp_path: Path):
    with circle(config_of(services, tmp_path / "state"), "log-gone") as running:
        running.kill_everything()
        outsiders.every_topic_deleted(running)
        running.console.write_text("")
        running.resume()
        running.ends_with_an_error()
        assert "can't be resumed: topic" in running.said()
        assert not (running.made.path / "report.json").exists(), "nothing is complete, and nothing counted as not lost"
