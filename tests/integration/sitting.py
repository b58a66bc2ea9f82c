"""A person who demonstrates tasks of a run in a real browser, tries gestures, goes away, and is killed."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from console.runs import run_folder as folder
from console.runs.run_log import read_events
from dart_streams.actions import Action
from tests.integration.miniwob_backend import browser
from tests.integration.miniwob_backend import task as page_task
from tests.integration.scripted_person import ScriptedPerson, demonstrating, person_at
from tests.page.test_page import SHOTS
from tests.waiting import wait_until
from topics import observations
from topics.observations import Observation

SHOWN = ("miniwob/enter-text#3", "miniwob/drag-box#3")
"""A page of clicks and keys, and one of a drag. Random clicks solve neither."""
LEASE_S = 10


async def solutions() -> dict[str, list[Action]]:
    """Return the oracle's actions for each task that the person shows."""
    found: dict[str, list[Action]] = {}
    async with browser(slots=1) as backend:
        for name in SHOWN:
            page, _, seed = name.removeprefix("miniwob/").partition("#")
            environment = await backend.open(chosen := page_task(page, int(seed)))
            await environment.reset(chosen)
            found[name] = []
            async for action in environment.demonstrate(chosen):
                found[name].append(action)
                await environment.step(action, str(len(found[name])))
            await environment.close()
    return found


class Sitting(NamedTuple):
    """What people did at the pages of a run, by the run's folder."""

    made: folder.RunFolder
    shots: Path

    def options(self, lease_s: int = 600) -> tuple[object, ...]:
        return "--run", self.made.id, "--state", self.made.config().run.state_dir, "--lease", lease_s

    async def show(self, task: str, solution: list[Action]) -> str:
        """Demonstrate a task, and return what the page says of the end."""
        with demonstrating(task, *self.options(), log=self.shots / "show.log") as (_, url):
            async with person_at(url, SHOTS) as person:
                await person.begin()
                for number, action in enumerate(solution):
                    await person.turn(number)
                    await person.tab.shot(f"demonstrate-{number}")
                    await person.do(action)
                said = await person.end()
                await person.tab.shot("demonstrate-end")
                assert person.tab.errors == []
                return said

    async def try_gestures(self) -> str:
        """Do what no solution needs, be refused, and give up. Neither a second tab nor a reload ends the episode."""
        with demonstrating(SHOWN[0], *self.options(), log=self.shots / "gestures.log") as (_, url):
            async with person_at(url, SHOTS) as person:
                await person.begin()
                for number, gesture in enumerate(gestures_of(person)):
                    await gesture()
                    await person.turn(number + 1)
                await person.tab.js("void (document.getElementById('action').value = 'jump()')")
                await person.tab.click("#write button")
                await person.tab.until("!document.getElementById('problem').hidden", "the refusal")
                async with person_at(f"{url}", SHOTS) as other:
                    await other.tab.until("document.getElementById('problem').innerText.includes('another tab')")
                await person.tab.open(url.partition("?")[0])
                await person.turn(7)
                await person.tab.click("#give-up")
                return await person.end()

    async def leave_and_die(self) -> None:
        """Begin an episode and close the tab, begin another, act once and be killed; wait for the end of both."""
        with (
            demonstrating(SHOWN[0], *self.options(LEASE_S), log=self.shots / "leave.log") as (_, left),
            demonstrating(SHOWN[0], *self.options(LEASE_S), log=self.shots / "die.log") as (process, killed),
        ):
            async with person_at(left, SHOTS) as person:
                await person.begin()
            async with person_at(killed, SHOTS) as person:
                await person.begin()
                await person.click(5, 5)
                await person.turn(1)
                process.kill()
                await asyncio.to_thread(process.wait)
                await person.tab.until("document.getElementById('said').innerText.includes('connection lost')")
            await asyncio.to_thread(wait_until, lambda: len(self.lost()) == 2, "the end of what a person left")

    def lost(self) -> list[Observation]:
        """Return the last observations of people's episodes that ended as faults."""
        ends = [one for one in read_events(self.made.config().bus, [observations.TOPIC]) if one.end is not None]
        return [one for one in ends if one.order.lease is not None and one.end.kind == "policy_error"]


def gestures_of(person: ScriptedPerson) -> list[Callable[[], Any]]:
    """Return seven gestures, one of a kind."""
    return [
        lambda: person.click(20, 70, count=2),
        lambda: person.click(20, 190, "right"),
        lambda: person.scroll(80, 120, 240.0),
        lambda: person.chord("a", 65, 2),
        lambda: person.tab.press("Backspace", 8),
        lambda: person.tab.click("#wait"),
        lambda: hover(person),
    ]


async def hover(person: ScriptedPerson) -> None:
    await person.tab.click("#hover")
    await person.click(30, 100)
