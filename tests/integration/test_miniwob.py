"""MiniWoB++ in a real Chromium: every page's evaluator, determinism, no leaks between episodes, and healing."""

import asyncio
import os
import signal
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from dart_streams import tasks
from dart_streams.actions import Click, Hotkey, Type
from dart_streams.config import Config, Env
from dart_streams.tasks import Task
from workers.env.environment import EnvironmentFault
from workers.env.miniwob.backend import MiniwobBackend
from workers.env.miniwob.page import MiniwobPage

TASKS = tasks.load(Path(__file__).parents[2] / "deploy/config/tasks.toml")
SEEDS = 3


@asynccontextmanager
async def browser(call_timeout_s: float = 15.0, fresh_contexts: bool = False):
    backend = MiniwobBackend(Config(env=Env(call_timeout_s=call_timeout_s, fresh_contexts=fresh_contexts)))
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


def task(page: str, seed: int) -> Task:
    return Task(environment="miniwob", page=page, seed=seed, max_steps=10, split="train")


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
        page = await shared.open()
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
    first = await shared.open()
    before = await first.reset(chosen)
    await first.evaluate_script("localStorage.setItem('left', 'behind'); document.cookie = 'left=behind'; 0")
    await play_oracle(first, chosen)
    second = await shared.open()
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
    first = await shared.open()
    before = await first.reset(chosen)
    await play_oracle(first, chosen)
    await first.evaluate_script(
        "localStorage.setItem('left', 'behind'); sessionStorage.setItem('left', 'behind'); window.name = 'left';"
        " window.left = 'behind'; history.pushState({}, '', '#left'); 0"
    )
    await first.close()
    again = await shared.open()
    assert again.context == first.context
    after = await again.reset(chosen)
    assert (after.image, after.instruction, after.done) == (before.image, before.instruction, False)
    left = "[localStorage.getItem('left'), sessionStorage.getItem('left'), window.left, window.name, location.hash]"
    assert await again.evaluate_script(left) == [None, None, None, "", ""]
    assert await again.evaluate() == 0
    steps = await play_oracle(again, chosen)
    assert await again.evaluate() == 1, f"after {steps} steps"
    await again.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_a_page_with_a_fault_is_not_used_again(shared):
    page = await shared.open()
    await page.reset(task("click-test", 1))
    with pytest.raises(EnvironmentFault):
        await page.evaluate_script("throw new Error('broken')")
    await page.close()
    other = await shared.open()
    assert other.context != page.context
    await other.close()


async def test_by_default_each_episode_has_a_browser_context_of_its_own():
    assert Env().fresh_contexts
    async with browser(fresh_contexts=True) as backend:
        contexts = set()
        for seed in range(3):
            page = await backend.open()
            await page.reset(task("click-test", seed))
            contexts.add(page.context)
            await page.close()
        assert len(contexts) == 3


@pytest.mark.asyncio(loop_scope="module")
async def test_seeds_differ(shared):
    page = await shared.open()
    screens = {(await page.reset(task("click-button", seed))).image for seed in range(5)}
    assert len(screens) == 5


@pytest.mark.asyncio(loop_scope="module")
async def test_an_action_is_executed_once_per_id(shared):
    page = await shared.open()
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


async def test_a_crashed_page_is_a_fault_at_once_and_others_go_on():
    async with browser() as backend:
        doomed, other = await backend.open(), await backend.open()
        await doomed.reset(task("click-test", 1))
        await other.reset(task("click-test", 1))
        with pytest.raises(EnvironmentFault, match="crashed"):
            async with asyncio.timeout(5):
                await doomed.devtools.call("Page.crash", doomed.session)
        with pytest.raises(EnvironmentFault):
            await doomed.step(Click(1, 1), "a")
        await doomed.close()
        assert await play_oracle(other, task("click-test", 1)) == 1
        healed = await backend.open()
        await healed.reset(task("click-test", 2))


async def test_an_endless_script_is_a_fault_after_the_time_out():
    async with browser(call_timeout_s=1.5) as backend:
        page = await backend.open()
        await page.reset(task("click-test", 1))
        with pytest.raises(EnvironmentFault, match="no answer"):
            await page.evaluate_script("while (true) {}")
        await page.close()
        assert (await (await backend.open()).reset(task("click-test", 1))).instruction


async def test_a_killed_browser_is_replaced_and_leaves_no_process_and_no_profile():
    async with browser() as backend:
        page = await backend.open()
        await page.reset(task("click-test", 1))
        old = backend.browser
        children = psutil.Process(old.process.pid).children(recursive=True)
        os.kill(old.process.pid, signal.SIGKILL)
        with pytest.raises(EnvironmentFault, match="gone"):
            async with asyncio.timeout(5):
                await page.evaluate_script("new Promise(() => {})")
                await page.devtools.call("Browser.getVersion")
        healed = await backend.open()
        assert (await healed.reset(task("click-test", 1))).instruction
        _, alive = await asyncio.to_thread(psutil.wait_procs, children, 5)
        assert not alive
        assert not old.profile.exists()


async def test_an_unknown_page_is_named():
    async with browser() as backend:
        page = await backend.open()
        with pytest.raises(EnvironmentFault, match="no-such-page"):
            await page.reset(task("no-such-page", 1))
