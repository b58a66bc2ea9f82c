"""People take over rollouts of a real environment worker from the wall, in real browsers with real mouse events."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp.test_utils import TestServer

from console.runs.run_folder import RunFolder
from console.views.page.assets import load_assets
from console.views.page.feedback_intake import FeedbackIntake
from console.views.page.guard import Guard, WriteRight
from console.views.page.live_source import LiveSource
from console.views.page.server import PageServer
from console.views.page.take_over_route import load_take_over_files
from dart_streams.actions import Click
from dart_streams.config import Config
from dart_streams.config.tasks import Task
from dart_streams.episodes.trajectory_summary import summarize
from tests import events
from tests.integration.env_harness import QUICK, Harness, harness_of, order, solve, worker
from tests.integration.page_browser import Tab, browser_tab
from tests.integration.people import is_refused
from tests.integration.scripted_person import SAID, TAKEN, ScriptedPerson
from tests.page.test_page import SHOTS
from tests.task_files import write_tasks
from tests.waiting import until
from tests.worker_runs import running_worker
from topics import actions
from topics.action_requests import ActionRequest
from topics.feedback import Feedback
from topics.rollout_orders import RolloutOrder
from workers.env.backends.simulated import box_center
from workers.env.take_overs import TakeOvers
from workers.recorder.main import connect as connect_recorder

TASK = Task(environment="simulated", page="steps-6", seed=1, max_steps=10, split="train")
BOX = Click(*box_center(TASK))
"""What solves the page by six clicks, in pixels of the screen."""

pytestmark = pytest.mark.timeout(600)


class Run:
    """A rollout under way, whose policy answers when the test lets it."""

    def __init__(self, harness: Harness, noted: list[str], url: str) -> None:
        self.harness, self.noted, self.url = harness, noted, url

    async def asks_policy(self, step: int) -> ActionRequest:
        """Return the request of a step, once the worker asks the policy."""
        await self.harness.until(lambda: any(one.step == step for one in self.harness.requests))
        return next(one for one in self.harness.requests if one.step == step)

    async def answer(self, step: int, text: str = "") -> None:
        """Let the policy answer, by a click on the box unless a ``text`` is given."""
        request = await self.asks_policy(step)
        await self.harness.respond(request, text or solve(request))

    async def taken(self, times: int) -> None:
        """Wait until the worker knows of this number of take-overs."""
        await until(lambda: self.has_noted(times))

    async def has_noted(self, times: int) -> bool:
        return len(self.noted) == times


@contextlib.asynccontextmanager
async def rollout(config: Config, ordered: RolloutOrder, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Run]:
    """Yield a rollout of a worker, with a recorder and the page for feedback."""
    noted, add = list[str](), TakeOvers.add

    def note(self: TakeOvers, given: Feedback) -> None:
        add(self, given)
        noted.append(given.feedback_id)

    monkeypatch.setattr(TakeOvers, "add", note)
    source = LiveSource(config, RunFolder(config.run.folder))
    right = WriteRight(1, "a-token-that-writes")
    guard = Guard(frozenset(), 1, tls=False, right=right)
    files = load_assets(None) | load_take_over_files()
    server = TestServer(PageServer(source, guard, files, None, FeedbackIntake(source, "ann")).application())
    recorder = running_worker(connect_recorder, config, "recorder-0")
    async with harness_of(config, lambda _: None) as harness, worker(config), recorder:
        await server.start_server()
        reading = asyncio.create_task(source.run())
        try:
            await harness.order(ordered)
            yield Run(harness, noted, f"http://127.0.0.1:{server.port}/?token={right.token}")
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await server.close()
            await source.close()


def clicks(services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> contextlib.AbstractAsyncContextManager[Run]:
    """Return a rollout of a simulated page of six clicks."""
    times = {"request_timeout_s": 300.0, "episode_timeout_s": 900.0}
    config = services.config(
        env={"backend": "simulated", "slots": 2, "simulated": QUICK, **times},
        tasks=write_tasks(tmp_path, "steps-6", max_steps=10),
        run={"drain_s": 6, "state_dir": str(tmp_path)},
        feedback={"enabled": True},
    )
    return rollout(config, order(0, TASK.task_id, max_steps=10), monkeypatch)


async def press(tab: Tab, run: Run, text: str = "") -> ScriptedPerson:
    """Press Take over on the wall, before the policy's first answer."""
    await run.asks_policy(0)
    await tab.open(run.url)
    await tab.at("")
    await tab.go("wall")
    await tab.click(".slot .take:not([hidden])")
    await tab.until(f"{SAID}?.includes('your turn comes with its next screen')", "the wait for the policy")
    await run.taken(1)
    await run.answer(0, text)
    person = ScriptedPerson(tab)
    await person.turn(1)
    return person


async def act(person: ScriptedPerson, taken: int) -> None:
    """Click the box as the action after ``taken`` others."""
    await person.turn(taken)
    await person.do(BOX)
    await person.tab.until(f"{TAKEN} === {taken + 1}", "the action")


async def give_back(person: ScriptedPerson, run: Run, step: int, text: str = "") -> None:
    """Leave a step to the policy, and take over again at once."""
    await person.turn(step)
    await person.tab.js("for (const id of ['give-back', 'begin']) document.getElementById(id).click()")
    await person.tab.until(f"{SAID}?.includes('your turn comes with its next screen')", "the wait for the policy")
    await run.taken(2)
    await run.answer(step, text)
    await person.turn(step + 1)


async def come_second(run: Run) -> None:
    """Open a rollout that a person plays, and be refused in words."""
    [identity] = run.harness.observed
    await is_refused(run.url, identity)
    assert len(run.noted) == 1, "nothing was asked for"


async def act_unasked(run: Run, step: int) -> None:
    """Send an action for a step as a person who does not play the rollout."""
    [identity] = run.harness.observed
    sent = {"request_id": f"{identity}/{step}/person", "trajectory_id": identity, "step": step}
    unasked = events.action_response("Action: wait()", worker_id="a person who was not asked", **sent)
    publisher = run.harness.publisher
    for partition in range(await publisher.partitions_of(actions.TOPIC)):
        await publisher.publish(actions.TOPIC, unasked, partition=partition)


async def test_a_person_takes_over_gives_back_once_and_solves_it(services, tmp_path, monkeypatch):
    async with clicks(services, tmp_path, monkeypatch) as run, browser_tab(SHOTS) as tab:
        person = await press(tab, run)
        await come_second(run)
        await act_unasked(run, 1)
        await act(person, 1)
        await person.turn(2)
        await tab.shot("take-over")
        await give_back(person, run, 2)
        for taken in (3, 4, 5):
            await act(person, taken)
        assert (await person.end()).startswith("success")
        whose = "[...document.querySelectorAll('#taken .whose')].map((one) => one.innerText.trim())"
        person_, policy = "a person", "the policy"
        assert await tab.js(whose) == [policy, person_, policy, person_, person_, person_]
        await tab.click("#back")
        await tab.at("")
        [identity] = run.harness.observed
        for step, said in ((0, "the policy's"), (1, "a person's")):
            await tab.go(f"trajectory?id={identity}&step={step}")
            assert await tab.text(".whose") == said
        await tab.shot("take-over-trajectory")
        assert tab.errors == []
    [steps] = run.harness.observed.values()
    assert (summarize(steps).person_steps, summarize(steps).outcome) == ([1, 3, 4, 5], "success")
    assert summarize(steps).take_overs == run.noted
    assert [request.step for request in run.harness.requests] == [0, 2]


async def test_a_killed_browser_gives_the_rollout_back(services, tmp_path, monkeypatch):
    async with clicks(services, tmp_path, monkeypatch) as run:
        async with browser_tab(SHOTS) as tab:
            person = await press(tab, run)
            await act(person, 1)
            await person.turn(2)
        for step in (2, 3, 4, 5):
            await run.answer(step)
        await run.harness.until(lambda: bool(run.harness.ended))
    [steps] = run.harness.observed.values()
    assert (summarize(steps).person_steps, summarize(steps).outcome) == ([1], "success")
