"""A person plays tasks of a circle of processes in a real browser: what they show is trained on, nothing is lost."""

import asyncio
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from rich.console import Console

import topics
from dart_streams.actions import Action
from dart_streams.config import Config
from dart_streams.console.runs import run_folder as folder
from dart_streams.console.runs.run_log import read_events, read_log
from dart_streams.console.runs.run_state import RunState
from dart_streams.store import SyncStore, connect
from tests.command_line import invoke, invoke_json
from tests.integration.miniwob_backend import browser
from tests.integration.miniwob_backend import task as page_task
from tests.integration.scripted_person import ScriptedPerson, demonstrating, person_at
from tests.integration.test_circle import circle_config, session_of, turning, until
from tests.integration.test_page import SHOTS
from tests.waiting import wait_until
from topics import action_requests, observations
from topics.observations import Observation

SHOWN = ("miniwob/enter-text#3", "miniwob/drag-box#3")
"""A page of clicks and keys, and one of a drag. Random clicks solve neither."""
LEASE_S = 10

pytestmark = pytest.mark.timeout(900)


def browser_config(services, tmp_path: Path) -> Config:
    """Return a circle that plays pages in a browser, answered at random, without demonstrations of its own."""
    base = circle_config(services, tmp_path, episodes=0, demonstrate=False)
    replace = msgspec.structs.replace
    return replace(
        base,
        env=replace(base.env, backend="miniwob", slots=4, miniwob=replace(base.env.miniwob, call_timeout_s=30.0)),
        rollout=replace(base.rollout, scripted=replace(base.rollout.scripted, behaviour="random")),
        curation=replace(base.curation, budget=replace(base.curation.budget, base=4)),
        trainer=replace(base.trainer, groups_per_step=1),
    )


def task_file(tmp_path: Path) -> Path:
    """Write a task file with the shown tasks alone for training."""
    page = '[[pages]]\nenvironment = "miniwob"\npage = "{}"\nmax_steps = 8\n'
    seeds = "train_seeds = [3, 4]\nheldout_seeds = [100, 101]\n"
    path = tmp_path / "shown-tasks.toml"
    path.write_text("".join(page.format(name) + seeds for name in ("enter-text", "drag-box")))
    return path


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

    def options(self) -> tuple[object, ...]:
        return "--run", self.made.id, "--state", self.made.config().run.state_dir, "--lease", LEASE_S

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

    async def leave(self) -> None:
        """Begin an episode, and close the tab."""
        with demonstrating(SHOWN[0], *self.options(), log=self.shots / "leave.log") as (_, url):
            async with person_at(url, SHOTS) as person:
                await person.begin()
            await asyncio.to_thread(wait_until, lambda: len(self.lost()) == 1, "the end of what was left")

    async def die(self) -> None:
        """Begin an episode, act once, and be killed."""
        with demonstrating(SHOWN[0], *self.options(), log=self.shots / "die.log") as (process, url):
            async with person_at(url, SHOTS) as person:
                await person.begin()
                await person.click(5, 5)
                await person.turn(1)
                process.kill()
                await asyncio.to_thread(process.wait, 30)
                await person.tab.until("document.getElementById('said').innerText.includes('connection lost')")
        await asyncio.to_thread(wait_until, lambda: len(self.lost()) == 2, "the end of what a kill left")

    def lost(self) -> list[Observation]:
        """Return the last observations of people's episodes that ended as faults."""
        ends = [one for one in read_events(self.made.config().bus, [observations.TOPIC]) if one.end is not None]
        return [one for one in ends if one.order.lease is not None and one.end.reward is None]


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


async def play(sitting: Sitting) -> list[str]:
    """Run the circle until it has trained on what was shown, and everything else was done; return the ends' words."""
    done = asyncio.Event()

    def is_learned(state: RunState) -> bool:
        trained = [group for name, (group, _) in state.groups.items() if state.trained_with.get(name)]
        taken = [one.trajectory_id for group in trained for one in group.members if one.source == "pool"]
        return done.is_set() and {state.trajectories[one].task_id for one in taken} >= set(SHOWN)

    session = until(session_of(sitting.made, Console(file=io.StringIO(), width=160)), is_learned)
    async with turning(session, sitting.made):
        said = [await sitting.show(name, solution) for name, solution in (await solutions()).items()]
        said.append(await sitting.try_gestures())
        await sitting.leave()
        await sitting.die()
        done.set()
    return said


def people_of(config: Config) -> dict[str, list[Observation]]:
    """Return the observations of people's episodes, by trajectory."""
    found: dict[str, list[Observation]] = {}
    for one in read_events(config.bus, [observations.TOPIC]):
        if one.order.lease is not None:
            found.setdefault(one.trajectory_id, []).append(one)
    return found


def test_what_a_person_shows_is_trained_on_and_nothing_is_lost(services, tmp_path):
    made = folder.create(browser_config(services, tmp_path), task_file(tmp_path), folder.new_id(), resume=False)
    config = made.config()
    said = asyncio.run(play(Sitting(made, tmp_path)))
    assert [text.partition(",")[0] for text in said] == ["success", "success", "failure"]

    played = people_of(config)
    ends = [(one[-1].end.kind, one[-1].end.reason) for one in sorted(played.values(), key=lambda one: one[0].at_ms)]
    lost = ("policy_error", f"the person was lost: no action and no sign of life for {LEASE_S} s")
    assert ends == [("success", ""), ("success", ""), ("failure", "call_user"), lost, lost]

    shown = {one[0].order.task_id: one for one in played.values() if one[-1].end.kind == "success"}
    session = connect(config.store)
    store = SyncStore(session, config.bus.run, 1)
    stored = store.steps_many(sorted(played))
    for one in played.values():
        assert one[0].order.purpose == "demonstration"
        for number, step in enumerate(one[1:]):
            if step.taken is None:
                continue  # the end of a lost person
            assert step.taken.request_id == f"{step.trajectory_id}/{number}/0"
            assert (step.taken.tokens, step.taken.versions) == ([], [])
            assert step.taken.generate_ms > 0, "the time that the person took"
        assert stored[one[0].trajectory_id] == one, "all is durable"
    session.cluster.shutdown()
    typed = [step.taken.action for step in shown[SHOWN[0]][1:]]
    assert [text.partition("(")[0] for text in typed] == ["Action: click", "Action: type", "Action: click"]
    assert any("drag(" in step.taken.action for step in shown[SHOWN[1]][1:])
    [tried] = [one for one in played.values() if one[-1].end.reason == "call_user"]
    names = [step.taken.action.removeprefix("Action: ").partition("(")[0] for step in tried[1:]]
    assert names == ["left_double", "right_single", "scroll", "hotkey", "hotkey", "wait", "move", "call_user"]

    asked = {one.trajectory_id for one in read_events(config.bus, [action_requests.TOPIC])}
    assert asked and not asked & played.keys(), "no rollout worker was asked for a person's action"
    state = RunState().fold(read_log(config.bus, topics.ALL))
    pooled = {
        one.trajectory_id
        for name, (group, _) in state.groups.items()
        for one in group.members
        if one.source == "pool" and state.trained_with.get(name)
    }
    assert {one[0].trajectory_id for one in shown.values()} <= pooled

    report = json.loads((made.path / "report.json").read_text())
    assert (report["lost"], report["open"]) == (0, 0)
    path = tmp_path / "run.dart"
    assert invoke("capture", made.id, "--state", tmp_path, "-o", path).exit_code == 0
    assert invoke_json("replay", path)["equal"] is True
