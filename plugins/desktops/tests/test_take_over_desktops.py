"""A person takes over a rollout on a real desktop, gives it back for a step, and solves it with mouse and keys."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from console.runs.run_log import read_events
from dart_streams.actions import Click, format
from dart_streams.config import Config, FeedbackRules
from dart_streams.episodes.trajectory_summary import summarize
from dart_streams.screens import smart_resize
from plugins.desktops.tests.test_demonstrate import BELOW, CTRL, SEED, SIZES, TEXT, act, edit_config, machines, write
from tests import events
from tests.curated_rollouts import curate
from tests.integration.page_browser import browser_tab
from tests.integration.scripted_person import ScriptedPerson
from tests.integration.test_take_over_page import Run, give_back, press, rollout
from tests.page.test_page import SHOTS
from topics import trajectories
from topics.observations import Observation
from topics.rollout_orders import RolloutOrder

SIZE = SIZES["desktop"]

pytestmark = [pytest.mark.usefixtures("desktops_of_normal_priority"), pytest.mark.timeout(600)]


def ordered(task: str, max_steps: int = 30) -> RolloutOrder:
    """Return dispatch's order of the only rollout of a group."""
    return events.rollout_order(
        "g000000/0/0", task_id=task, group_id="g000000", group_size=1, sample=0, max_steps=max_steps
    )


def taking(config: Config) -> Config:
    """Return the configuration of a run that credits what a person takes over, whose policy may be waited for."""
    env = msgspec.structs.replace(config.env, request_timeout_s=300.0)
    rules = FeedbackRules(enabled=True, credit_taken_over=True)
    return msgspec.structs.replace(config, env=env, feedback=rules)


def policy_click(config: Config, size: tuple[int, int], x: int, y: int) -> str:
    """Return the policy's answer that clicks a pixel of the screen."""
    width, height = smart_resize(*size, config.policy.min_pixels, config.policy.max_pixels)
    return format(Click(x * width // size[0], y * height // size[1]))


async def solve_edit(person: ScriptedPerson, run: Run, text: str) -> None:
    """Scroll, give back for a step, then write the text anew with the word before it, and save it."""
    word = (await person.tab.text("#instruction")).split('"')[1]
    await act(person, lambda: person.scroll(*BELOW, 200.0))
    await give_back(person, run, 2, text)
    await act(person, lambda: person.drag(BELOW, TEXT))
    await write(person, word + "Olive")
    await act(person, lambda: person.tab.press("Enter", 13))
    await person.tab.shot("take-over-desktop")
    await person.chord("s", 83, CTRL)


def check_parts(steps: list[Observation], noted: list[str], config: Config) -> None:
    """Check whose each step is, and what the data manager makes of the rollout: the policy took steps 0 and 2."""
    summary = summarize(steps)
    persons = [step for step in range(summary.steps) if step not in (0, 2)]
    assert (summary.outcome, summary.reward, summary.purpose) == ("success", 1.0, "train")
    assert (summary.person_steps, summary.own_steps) == (persons, [0, 2])
    assert summary.take_overs == noted and len(noted) == 2
    assert [step for step, one in enumerate(steps[1:]) if one.taken and not one.taken.tokens] == persons
    [announced] = read_events(config.bus, [trajectories.TOPIC])
    assert announced == summary, "the recorder says the same"
    made = curate(config, [announced])
    [shown] = made.groups
    assert (shown.group_id, shown.members[0].selected) == (f"take-over-{summary.trajectory_id}", persons)
    assert shown.is_supervised
    assert made.states["groups"].pools == {}, "the experience pool ignores a person's success"
    assert not any(task.rewards for task in made.states["difficulty"].tasks.values()), "and so does the success rate"


async def test_a_rollout_on_a_desktop_is_taken_over_and_solved(
    services: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with machines("desktop", tmp_path) as env:
        config = taking(edit_config(services, tmp_path, "desktop", env))
        text = policy_click(config, SIZE, SIZE[0] // 2, SIZE[1] // 2)
        async with rollout(config, ordered(f"desktop/edit#{SEED}"), monkeypatch) as run, browser_tab(SHOTS) as tab:
            person = await press(tab, run, text)
            await solve_edit(person, run, text)
            said = await person.end()
            assert tab.errors == []
    assert said.startswith("success, reward 1"), said
    [steps] = run.harness.observed.values()
    check_parts(steps, run.noted, config)
    screens = [one.screenshot for one in steps if one.screenshot]
    assert {(one.width, one.height) for one in screens} == {SIZE}
    assert len({one.sha256 for one in screens}) >= 4, "each part is seen"
