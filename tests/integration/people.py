"""What people do on the page of a run that goes on: they judge, correct, and take rollouts over."""

import asyncio
import json

from console.runs import run_folder as folder
from console.runs.run_log import read_events
from dart_streams.actions import Click
from dart_streams.config import Config
from dart_streams.config.tasks import Task
from dart_streams.episodes.trajectory_summary import is_whole
from tests.integration.live_run import kill
from tests.integration.page_audit import AXE, find_violations
from tests.integration.page_browser import Tab, browser_tab, tab
from tests.integration.scripted_person import SAID, STAGE, TAKEN, ScriptedPerson
from tests.page.test_page import SHOTS
from tests.waiting import wait_until
from topics import observations
from topics.observations import Observation
from workers.env.backends.simulated import box_center

TASK = Task(environment="simulated", page="steps-8", seed=3, max_steps=12, split="train")
BOX = Click(*box_center(TASK))
"""What solves a page, in pixels of the screen."""


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
    assert (written := await page.js(f"{action}.value")) == "click(start_box='(42,112)')", written
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
    assert (written := await page.js(f"{action}.value")) == "drag(start_box='(42,112)', end_box='(84,168)')", written
    await page.drag(".form .correct input", (0.5, 0.5))
    await page.js(f"{action}.select()")
    await page.call("Input.insertText", text="push it")
    await page.press("Enter", 13)
    await page.until("document.querySelector('.form .refused')?.innerText.includes('is no action')", "the refusal")
    await page.shot("form-refused")
    assert len(page.errors) == 1, page.errors  # The console says that it was refused.
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


async def judge_and_correct(made: folder.RunFolder, address: dict[str, str]) -> list[str]:
    """Give feedback on two rollouts, until the page shows what learned from it; return their ids."""
    async with tab(SHOTS) as page:
        await page.open(address["url"])
        await page.at("")
        assert await page.js("import('/api.js').then((api) => api.get('rights'))") == {"feedback": False}
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
            await page.js("performance.clearResourceTimings()")
            await page.go(f"trajectory?id={identity}&step=0")
            read = "performance.getEntriesByType('resource').filter((one) => one.name.includes('/api/trajectory?'))"
            await page.until(f"{read}.length > 1", "what was read before the first stamp is read again")
            learned = "[...document.querySelectorAll('.given')].filter((one) => one.innerText.includes('correction'))"
            await page.until(f"{learned}.some((one) => one.innerText.includes('learned by step'))", "what learned")
        await page.shot("form-learned")
        assert page.errors == []
    return ids


async def take_over(tab: Tab, url: str, known: set[str]) -> tuple[ScriptedPerson, str]:
    """Press Take over on the wall, at a rollout that nobody has taken yet, until it is the person's turn in one."""
    while True:
        await tab.open(url)
        await tab.go("wall")
        found = "new URLSearchParams(one.search).get('trajectory')"
        one = f"[...document.querySelectorAll('.slot .take:not([hidden])')].find((one) => !KNOWN.includes({found}))"
        pressed = f"((one) => one && (one.click(), {found}))({one.replace('KNOWN', json.dumps(sorted(known)))})"
        identity = await tab.until(pressed, "a rollout to take over")
        known.add(identity)
        await tab.until("location.pathname === '/play.html'", "the person's page")
        if await turn_of(tab):
            return ScriptedPerson(tab), identity


async def turn_of(tab: Tab) -> bool:
    """Wait for the person's turn; return whether it comes before the rollout ends."""
    return await tab.until(f"['turn', 'ended', 'refused'].includes({STAGE}) && {STAGE}", "the turn") == "turn"


async def act(person: ScriptedPerson) -> None:
    """Click the box when it is the person's turn, and wait until it is in the list."""
    before = await person.tab.until(f"{STAGE} === 'turn' && {TAKEN} + 1", "the turn") - 1
    await person.turn(before)
    await person.do(BOX)
    await person.tab.until(f"{TAKEN} > {before}", "the action")


async def act_once(tab: Tab, url: str, known: set[str]) -> tuple[ScriptedPerson, str]:
    """Take a rollout over and act once; take another one if the policy had left only its last step."""
    while True:
        person, identity = await take_over(tab, url, known)
        await act(person)
        if await turn_of(tab):
            return person, identity


async def is_refused(url: str, identity: str) -> None:
    """Come second to a rollout that a person plays."""
    async with browser_tab(SHOTS) as tab:
        await tab.open(url)
        await tab.at("")
        await tab.open(f"{url.partition('?')[0]}play.html?trajectory={identity}")
        await tab.until(f"{SAID}?.includes('another person plays this episode')", "the refusal")
        assert await tab.js("document.getElementById('begin').hidden")
        await tab.shot("take-over-second")


async def solve(url: str, known: set[str]) -> str:
    """Take a rollout over, give it back once, take it over again and solve it; another person is refused."""
    async with browser_tab(SHOTS) as tab:
        person, identity = await act_once(tab, url, known)
        await is_refused(url, identity)
        while True:
            await tab.shot("take-over")
            await tab.click("#give-back:not([disabled])")
            await tab.until(f"{STAGE} !== 'turn'", "the policy's turn")
            if await tab.js(STAGE) == "policy":
                await tab.click("#begin")
            if await turn_of(tab):
                break
            person, identity = await act_once(tab, url, known)  # The policy has ended it.
        while await turn_of(tab):
            await act(person)
        said = await person.end()
        assert said.startswith("success"), said
        await tab.shot("take-over-end")
        assert tab.errors == []
        await tab.click("#back")
        await tab.at("")
        whose = []
        for step in range(8):
            await tab.go(f"trajectory?id={identity}&step={step}")
            whose.append(await tab.until("document.querySelector('.whose')?.innerText", "who acted"))
        assert {"a person's", "the policy's"} == set(whose)
        await tab.shot("take-over-trajectory")
    return identity


async def leave(url: str, known: set[str]) -> str:
    """Take a rollout over, act once, and kill the browser."""
    async with browser_tab(SHOTS) as tab:
        _, identity = await act_once(tab, url, known)
    return identity


async def lose(url: str, known: set[str], made: folder.RunFolder) -> str:
    """Take a rollout over, act once, and kill its environment worker."""
    async with browser_tab(SHOTS) as tab:
        _, identity = await act_once(tab, url, known)
        await asyncio.to_thread(kill, made, ["env-0"])
        await tab.until(f"{SAID}?.includes('the environment worker was lost')", "the loss")
    return identity


def read_steps(config: Config, identity: str) -> list[Observation]:
    return [one for one in read_events(config.bus, [observations.TOPIC]) if one.trajectory_id == identity]


async def take_over_three(made: folder.RunFolder, url: str) -> list[str]:
    """Solve a rollout, leave the next, and lose a third with its worker; return them."""
    known: set[str] = set()
    solved = await solve(url, known)
    left = await leave(url, known)
    has_ended = lambda: is_whole(read_steps(made.config(), left))  # noqa: E731
    await asyncio.to_thread(wait_until, has_ended, "the end of what was left")
    lost = await lose(url, known, made)
    return [solved, left, lost]
