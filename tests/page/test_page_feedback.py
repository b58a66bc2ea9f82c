"""Feedback on the page in a real Chromium: it is shown with its fate, and doubts are queued."""

from pathlib import Path

import pytest

from console.runs import feedback
from console.runs.bundle import Bundle
from console.runs.run_log import RecordMetadata
from console.views.page.bundle_source import BundleSource
from console.views.page.judging import judging_queue
from tests import events
from tests.integration.recorded_run import record, settings
from tests.page.test_page import served


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    return record(tmp_path_factory.mktemp("page") / "run.dart", 90, settings(step_ms=1))


def fold(source: BundleSource, *given) -> None:
    """Let a run have had further events."""
    for event in given:
        source.state.apply(RecordMetadata("any", 0, 0, 0), event)


async def test_feedback_is_shown_with_what_learned_from_it_and_both_places(recorded: Path):
    source = BundleSource(Bundle(recorded)).read()
    played = next(one for one in source.state.trajectories.values() if one.purpose == "train" and one.steps > 1)
    corrected = feedback.make_correction(played, 1, "click(start_box='(84,112)')", "ann", 5000, "the other button")
    agreed = feedback.make_judgement(played, "good", "bob", 6000, "")
    member = events.member(played.trajectory_id, source="pool", selected=[1], corrections=[corrected.action])
    group = events.curated_group(
        f"feedback-{corrected.feedback_id}", member, feedback=[corrected.feedback_id], task_id=played.task_id
    )
    number = max(source.state.trained) + 1
    fold(source, corrected, agreed, group, events.trained_step(number, epoch=9, feedback=[group.group_id]))
    async with served(source) as (page, _):
        await page.go(f"trajectory?id={played.trajectory_id}&step=1")
        shown = await page.text(".inspector .feedback")
        assert f"learned by step {number}, version {number}" in shown
        assert "click(84,112): the other button" in shown
        assert "has trained nothing so far" in shown, "the judgement"
        own, right = await page.js(
            "[...document.querySelectorAll('.stage .marker .hit')].map((one) =>"
            " ['cx', 'cy'].map((name) => Number(one.getAttribute(name))))"
        )
        assert right == [80, 105], "in pixels of the screen, which the policy sees enlarged"
        assert own != right
        await page.loaded()
        await page.shot("feedback-given")
        await page.go(f"trajectory?id={played.trajectory_id}&step=0")
        assert await page.count(".stage .correction") == 0
        await page.click(".feedback .given button")
        await page.until("document.querySelectorAll('.stage .correction').length === 1", "the corrected step")
        await page.click(".feedback .given a")
        await page.at(f"#/step?id={number}")


async def test_the_queue_leads_from_one_doubtful_rollout_to_the_next(recorded: Path):
    source = BundleSource(Bundle(recorded)).read()
    state = source.state
    rollouts = [one for one in state.trajectories.values() if one.purpose == "train"]
    doubtful = rollouts[3]
    fold(source, *(feedback.make_judgement(doubtful, said, said, 5, "") for said in ("good", "bad")))
    fold(source, feedback.make_judgement(rollouts[4], "good", "ann", 5, ""))
    # A recorded rollout may be a straggler by itself, on a busy machine.
    queue = judging_queue(state)
    assert (queue.waiting, queue.doubtful >= 1) == (len(rollouts) - 1, True)
    async with served(source) as (page, _):
        await page.press("9")
        await page.at("#/queue")
        assert f"{queue.waiting} rollouts, {queue.doubtful} doubtful" in await page.text(".bar")
        assert "bad: bad, good: good" in await page.text("tbody tr")
        links = await page.js("[...document.querySelectorAll('tbody tr td:nth-child(2) a')].map((one) => one.hash)")
        assert links[0] == f"#/trajectory?id={doubtful.trajectory_id}&queue=yes"
        assert not any(rollouts[4].trajectory_id in link for link in links), "it is judged"
        await page.shot("queue")
        await page.click("tbody tr td:nth-child(2) a")
        await page.at(links[0])
        await page.press("n")
        await page.at(links[1])
        await page.shot("queue-next")
        await page.click(".bar button")
        await page.at(links[2])
