"""An outsider moves offsets, removes records or writes some, deletes topics: the circle heals, or ends and says why."""

import time
from pathlib import Path

import pytest

from tests.faults import outsiders
from tests.faults.circle import circle, config_of

pytestmark = pytest.mark.timeout(3600)
REMOVED = outsiders.UNREAD | {
    "decided otherwise in the replay",
    "a group counts what is not its order's first finish",
    "a group is trained on that is not curated",
}
"""Rules that need what was in a topic before it was made anew."""


def test_a_circle_heals_from_outsiders_and_counts_the_lost_orders(services, tmp_path: Path):
    with circle(config_of(services, tmp_path / "state"), "outsiders") as running:
        outsiders.heal(running, list(outsiders.CAUSES))
        running.is_killed_once_more_and_ends_well()


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


def test_a_run_whose_topics_are_gone_is_not_resumed(services, tmp_path: Path):
    with circle(config_of(services, tmp_path / "state"), "log-gone") as running:
        running.kill_everything()
        outsiders.every_topic_deleted(running)
        running.console.write_text("")
        running.resume()
        running.ends_with_an_error()
        assert "can't be resumed: topic" in running.said()
        assert not (running.made.path / "report.json").exists(), "nothing is complete, and nothing counted as not lost"
