"""A person plays a task of a real application on a desktop, in a real browser, with mouse, wheel and keys.

The desktop is one of the worker's own, or an OSWorld machine. Its screen is larger than the person's window there.
"""

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from console.runs.run_folder import write_toml
from console.runs.run_log import read_events
from dart_streams.config import Config
from plugins.desktops.tests.served_desktops import served
from tests.integration.page_browser import SIZE as WINDOW
from tests.integration.scripted_person import DRAWN, IMAGE, STAGE, TAKEN, ScriptedPerson, demonstrating, person_at
from tests.page.test_page import SHOTS
from tests.worker_runs import running_worker
from topics import actions, observations, trajectories
from topics.observations import Observation
from workers.env.main import connect as connect_env
from workers.recorder.main import connect as connect_recorder

SEED = 3
CALL_S = 60.0
SIZES = {"desktop": (640, 480), "osworld": (1920, 1080)}
EDITORS = {"desktop": (0, 0), "osworld": (640, 288)}
"""Left upper corner of the editor, which has 640x480 pixels: in the middle of the screen."""
TEXT, BELOW = (4, 56), (600, 400)
"""The begin of the editor's text, and a place below it, from that corner."""
CTRL = 2

pytestmark = [pytest.mark.usefixtures("desktops_of_normal_priority"), pytest.mark.timeout(600)]


@contextlib.asynccontextmanager
async def machines(backend: str, folder: Path) -> AsyncIterator[dict[str, Any]]:
    """Yield the configuration of a source of desktops."""
    width, height = SIZES[backend]
    if backend == "desktop":
        yield {"desktop": {"width": width, "height": height, "call_timeout_s": CALL_S}}
        return
    async with served(folder, (width, height), slots=1, lease_s=CALL_S) as running:
        leases = {"lease_url": running.leases, "lease_token": f"file:{running.token_file}", "lease_s": CALL_S}
        yield {"osworld": {**leases, "call_timeout_s": CALL_S}}


def edit_config(services: Any, folder: Path, backend: str, env: dict[str, Any]) -> Config:
    """Return a configuration whose only task is to put a word before a text in an editor."""
    tasks = folder / "tasks.toml"
    seeds = f"train_seeds = [{SEED}, {SEED + 1}]\nheldout_seeds = [100, 101]\n"
    tasks.write_text(f'[[pages]]\nenvironment = "{backend}"\npage = "edit"\nmax_steps = 30\n{seeds}')
    return services.config(
        env={"backend": backend, "slots": 1, "episode_timeout_s": 500.0, **env},
        tasks={"file": str(tasks)},
        run={"drain_s": 6, "state_dir": str(folder)},
    )


async def write_before(person: ScriptedPerson, backend: str) -> None:
    """Select the whole text by a drag, write it anew with the word before it, and save it."""
    word, text = (await person.tab.text("#instruction")).split('"')[1], "Olive"
    (left, top), start = EDITORS[backend], (EDITORS[backend][0] + TEXT[0], EDITORS[backend][1] + TEXT[1])
    below = left + BELOW[0], top + BELOW[1]
    gestures = [
        lambda: person.scroll(*below, 200.0),
        lambda: person.click(*below, "right"),
        lambda: person.tab.press("Escape", 27),
        lambda: person.drag(below, start),
        lambda: write(person, word + text),
        lambda: person.tab.press("Enter", 13),
    ]
    for number, gesture in enumerate(gestures):
        await act(person, gesture)
        await person.tab.shot(f"demonstrate-{backend}-{number}")
    await person.chord("s", 83, CTRL)


async def act(person: ScriptedPerson, gesture: Callable[[], Awaitable[None]]) -> None:
    """Make a gesture, and wait for the turn after its action."""
    before = await person.tab.js(TAKEN)
    await gesture()
    await person.tab.until(f"{TAKEN} > {before} && {STAGE} === 'turn' && {DRAWN}", "the turn after a gesture")


async def write(person: ScriptedPerson, text: str) -> None:
    """Type a text, and wait until all of it was typed there; on a busy machine it may become several actions."""
    content = "/^type\\(content='(.*)'\\)$/.exec(one.innerText)?.[1] ?? ''"
    typed = f"[...document.querySelectorAll('#taken code')].map((one) => {content}).join('')"
    for character in text:
        await person.tab.press(character)
    await person.tab.until(f"{typed} === {json.dumps(text)} && {STAGE} === 'turn'", "the typed text")


def names_of(steps: list[Observation]) -> list[str]:
    """Return the names of an episode's actions; parts of a text that was typed slowly count as one."""
    taken = [step.taken.action or "" for step in steps if step.taken is not None]
    names = [action.removeprefix("Action: ").partition("(")[0] for action in taken]
    return [name for before, name in pairwise(["", *names]) if not before == name == "type"]


@pytest.mark.parametrize("backend", SIZES)
async def test_a_person_solves_a_task_of_a_desktop_with_mouse_and_keys(services, tmp_path, backend):
    size = SIZES[backend]
    async with machines(backend, tmp_path) as env:
        config = edit_config(services, tmp_path, backend, env)
        write_toml(tmp_path / "demonstrate.toml", config)
        options = ("--config", tmp_path / "demonstrate.toml", "--lease", CALL_S)
        async with running_worker(connect_env, config, "env-0"), running_worker(connect_recorder, config, "recorder-0"):
            with demonstrating(f"{backend}/edit#{SEED}", *options, log=tmp_path / "demonstrate.log") as (_, url):
                async with person_at(url, SHOTS) as person:
                    await person.begin()
                    shown = await person.tab.js(f"{IMAGE}.getBoundingClientRect().width")
                    assert shown < min(size[0] + 1, WINDOW[0]), "the whole screen is in the window"
                    await write_before(person, backend)
                    said = await person.end()
                    assert person.tab.errors == []
    assert said.startswith("success, reward 1"), said

    steps = list(read_events(config.bus, [observations.TOPIC]))
    assert names_of(steps) == ["scroll", "right_single", "hotkey", "drag", "type", "hotkey", "hotkey"]
    assert {(step.screenshot.width, step.screenshot.height) for step in steps if step.screenshot} == {size}
    assert len({step.screenshot.sha256 for step in steps if step.screenshot}) >= 4, "each gesture is seen"
    [ended] = read_events(config.bus, [trajectories.TOPIC])
    assert (ended.purpose, ended.outcome, ended.reward) == ("demonstration", "success", 1.0)
    sent = [one for one in read_events(config.bus, [actions.TOPIC]) if one.text]
    assert all(one.worker_id.startswith("person-") for one in sent)
