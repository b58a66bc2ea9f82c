"""People take over rollouts of a circle of processes from the wall, in real browsers: what they solve is learned."""

import asyncio
import io
import json
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

import topics
from dart_streams.actions import Click
from dart_streams.config import Config, FeedbackRules
from dart_streams.config.tasks import Task
from dart_streams.console.runs import run_folder as folder
from dart_streams.console.runs.run_log import read_events, read_log
from dart_streams.console.runs.run_state import RunState
from dart_streams.episodes.trajectory_summary import is_whole, summarize
from tests.command_line import invoke, invoke_json
from tests.integration.page_browser import Tab, browser_tab
from tests.integration.scripted_person import SAID, STAGE, TAKEN, ScriptedPerson
from tests.integration.test_circle import circle_config, session_of, turning, until
from tests.integration.test_feedback_circle import kill
from tests.integration.test_page import SHOTS
from tests.integration.test_page_feedback import feedback_page
from tests.task_files import write_tasks
from tests.waiting import wait_until
from topics import observations
from topics.observations import Observation
from workers.env.backends.simulated import box_center

TASK = Task(environment="simulated", page="steps-8", seed=3, max_steps=12, split="train")
BOX = Click(*box_center(TASK))
"""What solves a page, in pixels of the screen."""

pytestmark = pytest.mark.timeout(900)


def slow_config(services, tmp_path: Path) -> Config:
    """Return a circle of simulated pages whose policy thinks long enough for people, and often clicks beside."""
    base = circle_config(services, tmp_path, episodes=0, demonstrate=False, minutes=12.0)
    replace = msgspec.structs.replace
    scripted = replace(base.rollout.scripted, latency_ms=2000.0, success_rate=0.9)
    return replace(
        base,
        rollout=replace(base.rollout, scripted=scripted),
        env=replace(base.env, slots=4, episode_timeout_s=300.0),
        curation=replace(base.curation, budget=replace(base.curation.budget, base=4)),
        trainer=replace(base.trainer, groups_per_step=1),
        feedback=FeedbackRules(enabled=True),
    )


def task_file(tmp_path: Path) -> Path:
    """Write a task file of one page of eight clicks."""
    return Path(write_tasks(tmp_path, "steps-8", max_steps=12, train=(3, 4))["file"])


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
            whose.append(await tab.text(".whose"))
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


async def people(made: folder.RunFolder, tmp_path: Path) -> list[str]:
    """Do all that people do in this test; return the rollouts that they took over."""
    known: set[str] = set()
    with feedback_page(made, tmp_path / "ui.json") as address:
        url = address["feedback_url"]
        solved = await solve(url, known)
        left = await leave(url, known)
        has_ended = lambda: is_whole(read_steps(made.config(), left))  # noqa: E731
        await asyncio.to_thread(wait_until, has_ended, "the end of what was left")
        lost = await lose(url, known, made)
    return [solved, left, lost]


async def play(made: folder.RunFolder, tmp_path: Path) -> list[str]:
    """Run the circle until people have done their part, and it has trained on what they solved."""
    done = asyncio.Event()

    def is_learned(state: RunState) -> bool:
        shown = [name for name in state.groups if name.startswith("take-over-")]
        return done.is_set() and any(state.trained_with.get(name) for name in shown)

    async with turning(until(session_of(made, Console(file=io.StringIO(), width=160)), is_learned), made):
        taken = await people(made, tmp_path)
        done.set()
    return taken


def test_what_people_take_over_is_marked_as_theirs_and_trained_on(services, tmp_path):
    made = folder.create(slow_config(services, tmp_path), task_file(tmp_path), folder.new_id(), resume=False)
    config = made.config()
    solved, left, lost = asyncio.run(play(made, tmp_path))
    summary = summarize(read_steps(config, solved))
    assert (summary.outcome, len(summary.take_overs), summary.purpose) == ("success", 2, "train")
    assert summary.own_steps and summary.own_steps[0] == 0, "the policy acted before the person"
    assert set(summary.own_steps) & set(range(summary.person_steps[0], summary.person_steps[-1])), "and between"
    steps = read_steps(config, solved)
    assert [step for step, one in enumerate(steps[1:]) if not one.taken.tokens] == summary.person_steps

    given_back = summarize(read_steps(config, left))
    assert len(given_back.person_steps) == 1
    assert given_back.person_steps[0] < given_back.steps - 1, "the policy went on"
    assert not is_whole(read_steps(config, lost))

    state = RunState().fold(read_log(config.bus, topics.ALL))
    learned = {name.removeprefix("take-over-") for name in state.groups if name.startswith("take-over-")}
    succeeded = {name for name, one in state.trajectories.items() if one.person_steps and one.outcome == "success"}
    assert learned == succeeded and solved in learned and lost not in learned
    assert (left in learned) == (given_back.outcome == "success")
    shown, _ = state.groups[f"take-over-{solved}"]
    assert (shown.members[0].trajectory_id, shown.members[0].selected) == (solved, summary.person_steps)
    assert state.trained_with[shown.group_id]
    rows = invoke_json("feedback", "list", "--run", made.id, "--state", tmp_path)
    fates = {row["state"] for row in rows if row["trajectory"] == solved and row["kind"] == "take-over"}
    assert fates == {"trained"}
    for group, _ in state.groups.values():
        for member in group.members:
            if member.source == "online" and (known := state.trajectories.get(member.trajectory_id)):
                assert not set(member.selected) & set(known.person_steps)
    report = json.loads((made.path / "report.json").read_text())
    assert (report["lost"], report["open"]) == (0, 0)
    path = tmp_path / "run.dart"
    assert invoke("capture", made.id, "--state", tmp_path, "-o", path).exit_code == 0
    assert invoke_json("replay", path)["equal"] is True
