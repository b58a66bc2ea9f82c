"""Feedback on the page in a real Chromium: it is given on a real run, shown with its fate, and doubts are queued."""

import asyncio
import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from dart_streams.console.runs import feedback
from dart_streams.console.runs import run_folder as folder
from dart_streams.console.runs.bundle import Bundle
from dart_streams.console.runs.run_log import RecordMetadata, read_events
from dart_streams.console.views.page.bundle_source import BundleSource
from dart_streams.console.views.page.judging import judging_queue
from tests import events
from tests.command_line import invoke_json
from tests.integration.page_audit import AXE, find_violations
from tests.integration.page_browser import Tab, tab
from tests.integration.recorded_run import record, settings
from tests.integration.test_circle import HERE
from tests.integration.test_feedback_circle import feedback_config
from tests.integration.test_page import SHOTS, served
from tests.integration.test_page_live import run_until
from tests.waiting import wait_until
from topics import feedback as feedback_topic


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


@contextlib.contextmanager
def feedback_page(made_run: folder.RunFolder, file: Path) -> Iterator[dict[str, str]]:
    """Serve a run's page for feedback as a process; yield its addresses and tokens."""
    command = [sys.executable, "-m", "dart_streams.console.cli", "ui", made_run.id, "--feedback", "--port", "0"]
    command += ["--state", str(made_run.path.parents[1]), "--address-file", str(file)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: process.poll() is not None or file.exists(), "the address")
        assert process.poll() is None
        yield json.loads(file.read_bytes())
    finally:
        process.kill()
        process.wait()


async def has_given(page: Tab, what: str) -> None:
    """Wait until the page says that a feedback was given."""
    said = "document.querySelector('.form [role=status]')?.innerText"
    await page.until(f"{said} === {json.dumps(f'Given: {what}.')}", what)


async def give(page: Tab) -> list[str]:
    """Judge, correct and note two rollouts of the queue with mouse and keys; return their ids."""
    await page.go("queue")
    await page.until("document.querySelectorAll('tbody tr').length >= 3", "rollouts to judge")
    await page.drag("tbody tr td:nth-child(2) a", (0.5, 0.5))
    await page.until("!!document.querySelector('.form') && !!document.querySelector('.stage img')?.naturalWidth")
    first = await page.text(".bar code")
    await page.press("1")
    await has_given(page, "judged good")
    await page.drag(".stage .screen", (0.25, 0.5))
    action = "document.querySelector('.form .correct input')"
    assert await page.js(f"{action}.value") == "click(start_box='(42,112)')", "pixels of the policy's image, 168 by 224"
    places = await page.js(
        "[...document.querySelectorAll('.stage .correction .hit')].map((one) =>"
        " ['cx', 'cy'].map((name) => Number(one.getAttribute(name))))"
    )
    assert places == [[40, 105]], "pixels of the screen, 160 by 210"
    assert await page.count(".stage .marker:not(.correction) .hit") == 1, "the policy's own place"
    await page.loaded()
    await page.shot("form")
    await page.dark()
    await page.shot("form-dark")
    assert not AXE.exists() or await find_violations(page) == []
    await page.dark(False)
    await page.drag(".form .correct button", (0.5, 0.5))
    await has_given(page, "action 1 corrected")
    await page.press("n")
    await page.until(f"document.querySelector('.bar code')?.innerText !== {json.dumps(first)}", "the next rollout")
    await page.until("!!document.querySelector('.stage img')?.naturalWidth", "its screen")
    second = await page.text(".bar code")
    await page.drag(".stage .screen", (0.25, 0.5), (0.5, 0.75))
    assert await page.js(f"{action}.value") == "drag(start_box='(42,112)', end_box='(84,168)')"
    await page.drag(".form .correct input", (0.5, 0.5))
    await page.js(f"{action}.select()")
    await page.call("Input.insertText", text="push it")
    await page.press("Enter", 13)
    await page.until("document.querySelector('.form .refused')?.innerText.includes('is no action')", "the refusal")
    await page.shot("form-refused")
    assert len(page.errors) == 1, "the console says that it was refused"
    page.errors.clear()
    await page.js(f"{action}.select()")
    await page.call("Input.insertText", text="type(content='3')")
    await page.write(".form .remark input", "3 is right")
    await page.drag(".form .correct button", (0.5, 0.5))
    await has_given(page, "action 1 corrected")
    await page.write(".form .remark input", "the label is cut")
    await page.press("Enter", 13)
    await has_given(page, "noted")
    await page.press("3")
    await has_given(page, "judged partial")
    return [first, second]


async def use(made_run: folder.RunFolder, file: Path) -> list[str]:
    """Give feedback on a run that goes on, until its page shows what learned from it."""
    with feedback_page(made_run, file) as address:
        async with tab(SHOTS) as page:
            await page.open(address["url"])
            await page.at("")
            assert await page.js("fetch('/api/rights').then((one) => one.json())") == {"feedback": False}
            await page.go("queue")
            await page.until("document.querySelectorAll('tbody tr').length >= 3", "rollouts that have ended")
            await page.drag("tbody tr td:nth-child(2) a", (0.5, 0.5))
            await page.until("!!document.querySelector('.stage')", "a rollout")
            assert await page.count(".form") == 0, "this address only reads"
            await page.open(address["feedback_url"])
            await page.at("")
            assert await page.js("document.cookie") == "", "scripts see no cookie"
            ids = await give(page)
            for identity in ids:
                await page.go(f"trajectory?id={identity}&step=0")
                learned = (
                    "[...document.querySelectorAll('.given')].filter((one) => one.innerText.includes('correction'))"
                )
                await page.until(f"{learned}.some((one) => one.innerText.includes('learned by step'))", "what learned")
            await page.shot("form-learned")
            assert page.errors == []
    return ids


@pytest.mark.timeout(600)
async def test_a_person_judges_and_corrects_a_run_with_mouse_and_keys(services, tmp_path: Path):
    config = feedback_config(services, tmp_path)
    made_run = folder.create(config, HERE / "circle-tasks.toml", folder.new_id(), resume=False)
    seen, shown = asyncio.Event(), io.StringIO()
    run = asyncio.create_task(run_until(seen, made_run, Console(file=shown, width=160)).run())
    try:
        await asyncio.to_thread(wait_until, lambda: made_run.topics_file.exists() or run.done(), "the topics")
        using = asyncio.create_task(use(made_run, tmp_path / "ui.json"))
        await asyncio.wait({run, using}, return_when=asyncio.FIRST_COMPLETED)
        assert using.done(), f"the run ended before feedback was given: {shown.getvalue()}"
        first, second = using.result()
        seen.set()
        await run
    finally:
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
    given = list(read_events(made_run.config().bus, [feedback_topic.TOPIC]))
    assert [(one.trajectory_id, one.kind, one.judgement or one.action, one.step, one.note) for one in given] == [
        (first, "judgement", "good", None, ""),
        (first, "correction", "click(start_box='(42,112)')", 0, ""),
        (second, "correction", "type(content='3')", 0, "3 is right"),
        (second, "note", "", 0, "the label is cut"),
        (second, "judgement", "partial", None, ""),
    ]
    rows = invoke_json("feedback", "list", "--run", made_run.id, "--state", tmp_path)
    assert [row["state"] for row in rows if row["kind"] == "correction"] == ["trained", "trained"]
