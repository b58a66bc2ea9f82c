"""MiniWoB++ in a real Chromium: every page's evaluator, determinism, no leaks between episodes, and healing."""

import asyncio
import io
import json
import os
import random
import signal
import subprocess
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
from PIL import Image, ImageChops

from dart_streams import tasks
from dart_streams.actions import Click, DoubleClick, Drag, Hotkey, RightClick, Scroll, Type
from dart_streams.config import Config, Env, Isolation, Miniwob
from dart_streams.tasks import Task
from workers.env.environment import EnvironmentFault, Screen
from workers.env.miniwob.backend import MiniwobBackend
from workers.env.miniwob.browser import NICENESS, lower_priority
from workers.env.miniwob.page import RESTARTABLE, MiniwobPage
from workers.env.miniwob.seats import TARGETS

TASKS = tasks.load(Path(__file__).parents[2] / "deploy/config/tasks.toml")
SEEDS = 3
RESTARTS = 3


@asynccontextmanager
async def browser(
    call_timeout_s: float = 15.0, isolation: Isolation = "document", slots: int = 16, last_screen: bool = True
):
    own = Miniwob(call_timeout_s=call_timeout_s, isolation=isolation, last_screen=last_screen)
    backend = MiniwobBackend(Config(env=Env(miniwob=own, slots=slots)))
    await backend.start()
    try:
        yield backend
    finally:
        await backend.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared():
    """One browser for the tests that do it no harm."""
    async with browser() as backend:
        yield backend


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def restarting():
    """One browser whose documents are used again."""
    async with browser(isolation="problem") as backend:
        yield backend


def task(page: str, seed: int) -> Task:
    return Task(environment="miniwob", page=page, seed=seed, max_steps=10, split="train")


TASK = task("click-test", 1)


async def play_oracle(page: MiniwobPage, chosen: Task) -> int:
    steps = 0
    async for action in page.demonstrate(chosen):
        steps += 1
        if (await page.step(action, str(steps))).done or steps > chosen.max_steps:
            break
    return steps


@pytest.mark.parametrize("family", TASKS.pages, ids=lambda family: family.page)
@pytest.mark.asyncio(loop_scope="module")
async def test_the_evaluator_gives_0_at_the_start_and_1_after_the_oracle(shared, family):
    for chosen in [*family.tasks("train")[:SEEDS], *family.tasks("heldout")[:SEEDS]]:
        page = await shared.open(chosen)
        await page.reset(chosen)
        assert await page.evaluate() == 0
        steps = await play_oracle(page, chosen)
        assert await page.evaluate() == 1, chosen.task_id
        assert steps <= chosen.max_steps
        await page.close()


@pytest.mark.parametrize("family", TASKS.pages, ids=lambda family: family.page)
@pytest.mark.asyncio(loop_scope="module")
async def test_an_episode_leaves_nothing_to_the_next(shared, family):
    chosen = family.tasks("train")[0]
    first = await shared.open(chosen)
    before = await first.reset(chosen)
    await first.evaluate_script("localStorage.setItem('left', 'behind'); document.cookie = 'left=behind'; 0")
    await play_oracle(first, chosen)
    second = await shared.open(chosen)
    after = await second.reset(chosen)
    assert (after.image, after.instruction, after.done) == (before.image, before.instruction, False)
    assert await second.evaluate_script("localStorage.getItem('left')") is None
    assert await second.evaluate() == 0
    await first.close()
    await second.close()


@pytest.mark.parametrize("family", TASKS.pages, ids=lambda family: family.page)
@pytest.mark.asyncio(loop_scope="module")
async def test_a_page_that_is_used_again_is_as_new(shared, family):
    chosen = family.tasks("train")[0]
    first = await shared.open(chosen)
    before = await first.reset(chosen)
    await play_oracle(first, chosen)
    await first.evaluate_script(
        "localStorage.setItem('left', 'behind'); sessionStorage.setItem('left', 'behind'); window.name = 'left';"
        " window.left = 'behind'; history.pushState({}, '', '#left'); 0"
    )
    await first.close()
    again = await shared.open(chosen)
    assert again.context == first.context
    after = await again.reset(chosen)
    assert (after.image, after.instruction, after.done) == (before.image, before.instruction, False)
    left = "[localStorage.getItem('left'), sessionStorage.getItem('left'), window.left, window.name, location.hash]"
    assert await again.evaluate_script(left) == [None, None, None, "", ""]
    assert await again.evaluate() == 0
    steps = await play_oracle(again, chosen)
    assert await again.evaluate() == 1, f"after {steps} steps"
    await again.close()


STATE = """(() => {
  const names = Object.getOwnPropertyNames(window).sort().filter((name) => !/^\\d+$/.test(name));
  const plain = (value) => value === null || ['number', 'string', 'boolean', 'undefined'].includes(typeof value);
  // jQuery names what it keeps of the window by chance.
  const stable = (name) => name.replace(/^jQuery\\d+$/, 'jQuery');
  const elements = [window, document, ...document.querySelectorAll('*')];
  const listeners = (element) => Object.entries(getEventListeners(element)).map(([type, all]) => [type, all.length]);
  return JSON.stringify({
    body: document.body.outerHTML,
    head: document.head.childElementCount,
    fields: Array.from(document.querySelectorAll('input, textarea, select')).map((e) => [e.value, e.checked]),
    globals: names.map((name) => [stable(name), plain(window[name]) ? window[name] : typeof window[name]]),
    listeners: elements.map(listeners),
    scrolled: elements.map((e) => [e.scrollTop, e.scrollLeft]).filter(([top, left]) => top || left),
    focus: document.activeElement.tagName,
    selected: getSelection().toString(),
    stored: [localStorage.length, sessionStorage.length, window.name, location.href],
  });
})()"""


async def state(page: MiniwobPage) -> dict:
    """Return what can be seen of a document from within, and its listeners."""
    answer = await page.devtools.call(
        "Runtime.evaluate", page.session, expression=STATE, returnByValue=True, includeCommandLineAPI=True
    )
    return json.loads(answer["result"]["value"])


def largest_difference(one: Screen, other: Screen) -> int:
    """Return by how much two screens differ at most, in one channel of a pixel (0 to 255)."""
    one_image, other_image = (Image.open(io.BytesIO(screen.image)).convert("RGB") for screen in (one, other))
    return max(most for _, most in ImageChops.difference(one_image, other_image).getextrema())


def where_different(one: Screen, other: Screen) -> str:
    """Say which part of two screens differs, and by how much."""
    if one.image == other.image:
        return "not in their pixels"
    images = [Image.open(io.BytesIO(screen.image)).convert("RGB") for screen in (one, other)]
    return f"in {ImageChops.difference(*images).getbbox()}, by {largest_difference(one, other)} of 255 at most"


async def play_anything(page: MiniwobPage, chance: random.Random) -> None:
    """Do what a policy that knows nothing may do, and leave things behind as no policy can."""
    for number in range(8):
        x, y = chance.randrange(160), chance.randrange(50, 210)
        action = chance.choice(
            [
                Click(x, y),
                Click(x, y),
                DoubleClick(x, y),
                RightClick(x, y),
                Type("some text"),
                Scroll(x, y, "down"),
                Drag(x, y, chance.randrange(160), chance.randrange(50, 210)),
                Hotkey(("ctrl", "a")),
                Hotkey(("tab",)),
            ]
        )
        if (await page.step(action, f"any-{number}")).done:
            break
    await page.evaluate_script(
        "localStorage.setItem('left', 'behind'); sessionStorage.setItem('left', 'behind'); window.name = 'left';"
        " window.left = 'behind'; history.pushState({}, '', '#left');"
        " setTimeout(() => { window.late = 'behind'; }, 1); 0"
    )


@pytest.mark.parametrize("name", sorted(RESTARTABLE))
@pytest.mark.asyncio(loop_scope="module")
async def test_a_problem_that_is_started_again_is_as_in_a_new_document(shared, restarting, name):
    """The same pixels, elements, globals and listeners; and the oracle sees the same screens on its way to reward 1."""
    chance = random.Random(name)
    fresh = await shared.open(task(name, 0))
    used = await restarting.open(task(name, 0))
    await used.reset(task(name, 0))
    for seed in range(1, 1 + RESTARTS):
        await play_anything(used, chance) if seed % 3 else await play_oracle(used, task(name, seed - 1))
        await used.close()
        chosen = task(name, seed)
        again = await restarting.open(chosen)
        assert again.context == used.context
        used = again
        first, other = await fresh.reset(chosen), await used.reset(chosen)
        assert other == first, f"seed {seed}: {where_different(first, other)}"
        expected = await state(fresh)
        found = await state(used)
        assert found == expected
        steps = 0
        async for action in fresh.demonstrate(chosen):
            steps += 1
            screens = [await page.step(action, f"oracle-{steps}") for page in (used, fresh)]
            assert screens[0].done == screens[1].done
            assert largest_difference(*screens) <= 1, "two new documents differ by as much, where a button was hovered"
        assert await used.evaluate() == await fresh.evaluate() == 1
    await fresh.close()
    await used.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_a_document_that_was_left_is_loaded_again(restarting):
    page = await restarting.open(TASK)
    first = await page.reset(TASK)
    await page.devtools.navigate(page.session, "about:blank")
    await page.close()
    again = await restarting.open(TASK)
    assert again.context == page.context
    assert await again.reset(TASK) == first
    await again.close()


async def test_pages_for_all_documents_are_not_kept_without_bound():
    async with browser(isolation="problem", slots=1) as backend:
        names = sorted(RESTARTABLE)[: TARGETS + 2]
        for name in names + names:
            page = await backend.open(task(name, 1))
            assert (await page.reset(task(name, 1))).instruction
            assert await page.evaluate_script("localStorage.length + sessionStorage.length") == 0
            await page.evaluate_script(
                "localStorage.setItem('left', 'behind'); sessionStorage.setItem('left', 'it'); 0"
            )
            await page.close()
        targets = (await backend.browser.devtools.call("Target.getTargets"))["targetInfos"]
        assert len([target for target in targets if target["url"].startswith("file:")]) == TARGETS


@pytest.mark.asyncio(loop_scope="module")
async def test_a_page_with_a_fault_is_not_used_again(shared):
    page = await shared.open(TASK)
    await page.reset(task("click-test", 1))
    with pytest.raises(EnvironmentFault):
        await page.evaluate_script("throw new Error('broken')")
    await page.close()
    other = await shared.open(TASK)
    assert other.context != page.context
    await other.close()


async def test_by_default_each_episode_has_a_browser_context_of_its_own():
    assert Env().miniwob.isolation == "context"
    async with browser(isolation="context") as backend:
        contexts = set()
        for seed in range(3):
            page = await backend.open(TASK)
            await page.reset(task("click-test", seed))
            contexts.add(page.context)
            await page.close()
        assert len(contexts) == 3


@pytest.mark.asyncio(loop_scope="module")
async def test_seeds_differ(shared):
    page = await shared.open(TASK)
    screens = {(await page.reset(task("click-button", seed))).image for seed in range(5)}
    assert len(screens) == 5


@pytest.mark.asyncio(loop_scope="module")
async def test_an_action_is_executed_once_per_id(shared):
    page = await shared.open(TASK)
    await page.reset(task("enter-text", 1))
    field = await page.evaluate_script(
        "(() => { const b = document.querySelector('#tt').getBoundingClientRect();"
        " return [Math.round(b.x + 9), Math.round(b.y + 9)]; })()"
    )
    await page.step(Click(*field), "a")
    await page.step(Type("x"), "b")
    await page.step(Type("x"), "b")
    assert await page.evaluate_script("document.querySelector('#tt').value") == "x"
    await page.step(Hotkey(("ctrl", "a")), "c")
    await page.step(Type("new"), "d")
    assert await page.evaluate_script("document.querySelector('#tt').value") == "new"


async def test_the_last_screen_is_left_out_where_it_is_not_wanted():
    async with browser(last_screen=False) as backend:
        page = await backend.open(TASK)
        assert (await page.reset(TASK)).image is not None
        seen = await page.step(Click(1, 209), "a")
        assert (seen.image is not None, seen.done) == (True, False)
        assert (await page.step(Click(1, 209), "b", last=True)).image is None
        async for action in page.demonstrate(TASK):
            ended = await page.step(action, "c")
        assert (ended.image, ended.done, await page.evaluate()) == (None, True, 1.0)
        await page.close()


async def test_a_crashed_page_is_a_fault_at_once_and_others_go_on():
    async with browser(call_timeout_s=60.0) as backend:
        doomed, other = await backend.open(TASK), await backend.open(TASK)
        await doomed.reset(task("click-test", 1))
        await other.reset(task("click-test", 1))
        with pytest.raises(EnvironmentFault, match="crashed"):
            async with asyncio.timeout(20):
                await doomed.devtools.call("Page.crash", doomed.session)
        with pytest.raises(EnvironmentFault):
            await doomed.step(Click(1, 1), "a")
        await doomed.close()
        assert await play_oracle(other, task("click-test", 1)) == 1
        healed = await backend.open(TASK)
        await healed.reset(task("click-test", 2))


async def test_an_endless_script_is_a_fault_after_the_time_out():
    async with browser(call_timeout_s=4.0) as backend:
        page = await backend.open(TASK)
        await page.reset(task("click-test", 1))
        with pytest.raises(EnvironmentFault, match="no answer"):
            await page.evaluate_script("while (true) {}")
        await page.close()
        assert (await (await backend.open(TASK)).reset(task("click-test", 1))).instruction


async def test_a_killed_browser_is_replaced_and_leaves_no_process_and_no_profile():
    async with browser() as backend:
        page = await backend.open(TASK)
        await page.reset(task("click-test", 1))
        old = backend.browser
        children = psutil.Process(old.process.pid).children(recursive=True)
        os.kill(old.process.pid, signal.SIGKILL)
        with pytest.raises(EnvironmentFault, match="gone"):
            async with asyncio.timeout(5):
                await page.evaluate_script("new Promise(() => {})")
                await page.devtools.call("Browser.getVersion")
        healed = await backend.open(TASK)
        assert (await healed.reset(task("click-test", 1))).instruction
        _, alive = await asyncio.to_thread(psutil.wait_procs, children, 5)
        assert not alive
        assert not old.profile.exists()


def test_a_browser_gives_way_to_the_other_processes():
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        lower_priority(process.pid)
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == NICENESS
        shared_by_session = Path(f"/proc/{process.pid}/autogroup")
        assert not shared_by_session.exists() or shared_by_session.read_text().endswith(f"nice {NICENESS}\n")
    finally:
        process.kill()
        process.wait()


async def test_an_unknown_page_is_named():
    async with browser() as backend:
        page = await backend.open(TASK)
        with pytest.raises(EnvironmentFault, match="no-such-page"):
            await page.reset(task("no-such-page", 1))
