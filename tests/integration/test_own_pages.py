"""A user's pages in a real browser: their three functions, their faults, and ``dart-streams env check``."""

import json
import re
from pathlib import Path

import pytest

from dart_streams.actions import Wait
from dart_streams.config import Config, Env, Miniwob
from dart_streams.config.tasks import Task
from tests.environments import playing
from tests.fork_server import PROGRAM, run
from tests.task_files import write_tasks
from workers.env import conformance
from workers.env.backends.miniwob.backend import MiniwobBackend
from workers.env.environment import EnvironmentFault, NoOracle

EXAMPLE = Path(__file__).parents[2] / "examples/own_page"
PAGE = (EXAMPLE / "order.html").read_text()
VARIANTS = {
    "seeded": ("reset(seed) {", "reset(seed) { menu.title = Math.random();", ""),
    "late": ("reset(seed) {", "async reset(seed) { await new Promise((done) => setTimeout(done, 20));", ""),
    "no-task": ("const task", "const job", "fault: .*defines no global `task`"),
    "broken-script": ("const DISHES =", "const unused = missing, DISHES =", "fault: .*defines no global `task`"),
    "no-reset": ("reset(seed) {", "start(seed) {", r"fault: .*has no reset\(\)"),
    "no-instruction": ("return `Order", "const text = `Order", "must return the instruction"),
    "reward-of-7": ("checked ? 1 : 0", "checked ? 7 : 0", "returned 7: it must return a number from 0 to 1"),
    "done-at-start": ("reward = null", "reward = 1", "the start is worth 0"),
    "by-clock": ("reset(seed) {", "reset(seed) { order.textContent = performance.now();", "same screen|next episode"),
    "no-end": ("checked ? order : chosen()", "checked ? chosen() : chosen()", "at most the 2 steps"),
    "covered": (
        "reset(seed) {",
        "reset(seed) { order.style.cssText = 'position: fixed; left: 99em';",
        "no click reaches",
    ),
    "no-element": ("checked ? order : chosen()", "checked ? 7 : 7", "must return an element"),
}
"""Name: what is replaced in the example's page, by what, and the result of the check (empty: ok).

Two resets of a page that follows the clock may show the same time; then its next episode does not.
"""


def own_task(page: str, seed: int = 3) -> Task:
    return Task(environment="cafe", page=page, seed=seed, max_steps=2, split="train")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, (before, after, _) in VARIANTS.items():
        assert before in PAGE
        (tmp_path / f"{name}.html").write_text(PAGE.replace(before, after))
    (tmp_path / "order.html").write_text(PAGE)
    (tmp_path / "click-test.html").write_text(PAGE)
    (tmp_path / "no-oracle.html").write_text(PAGE.replace("demonstrate()", "unused()"))
    write_tasks(tmp_path, *VARIANTS, environment="cafe", max_steps=2, train=(0, 2), heldout=(10, 12))
    settings = (EXAMPLE / "cafe.toml").read_text()
    (tmp_path / "cafe.toml").write_text(settings.replace("[env.miniwob]", "[env.miniwob]\ncall_timeout_s = 60.0"))
    return tmp_path


@pytest.fixture
async def backend(folder: Path):
    settings = Miniwob(pages_folder=str(folder), call_timeout_s=60.0, isolation="problem")
    backend = MiniwobBackend(Config(env=Env(miniwob=settings, slots=2)))
    await backend.start()
    yield backend
    await backend.stop()


def test_env_check_names_what_is_wrong_with_a_page(folder: Path):
    command = [PROGRAM, "env", "check", "--config", folder / "cafe.toml", "--screens", folder / "screens", "--json"]
    done = run(command, text=True, timeout=300)
    assert done.returncode == 1, done.stderr
    rows = {row["page"]: row for row in json.loads(done.stdout)}
    assert rows.keys() == VARIANTS.keys()
    for name, (_, _, expected) in VARIANTS.items():
        assert re.search(expected or "^ok$", rows[name]["result"]), rows[name]
    assert rows["seeded"]["instruction"].startswith("Order the ")
    assert (folder / "screens/seeded-0.png").read_bytes().startswith(b"\x89PNG")


async def test_a_page_of_ones_own_conforms(backend: MiniwobBackend):
    await conformance.check(backend, own_task("order"))


async def test_it_comes_before_a_page_of_miniwob(backend: MiniwobBackend):
    page = await backend.open(own_task("click-test"))
    assert (await page.reset(own_task("click-test"))).instruction.startswith("Order the ")
    await page.close()


async def test_a_wrong_order_ends_with_reward_0(backend: MiniwobBackend):
    async with playing(backend, own_task("order")) as page:
        await page.evaluate_script("order.click()")
        assert (await page.step(Wait(), "look")).done
        assert await page.evaluate() == 0.0


async def test_a_page_without_demonstrate_has_no_oracle(backend: MiniwobBackend):
    await conformance.check(backend, own_task("no-oracle"))
    async with playing(backend, own_task("no-oracle")) as page:
        with pytest.raises(NoOracle, match=r"no task\.demonstrate"):
            await anext(page.demonstrate(own_task("no-oracle")))


async def test_a_page_that_is_nowhere_names_both_folders(backend: MiniwobBackend, folder: Path):
    page = await backend.open(own_task("gone"))
    with pytest.raises(EnvironmentFault, match=rf"does not exist, and {folder} has no gone\.html"):
        await page.reset(own_task("gone"))
    await page.close()


async def test_an_episode_that_leaves_its_page_goes_on_without_reward(backend: MiniwobBackend):
    async with playing(backend, own_task("order")) as page:
        action = await anext(page.demonstrate(own_task("order")))
        await page.evaluate_script("location.href = 'about:blank'")
        assert not (await page.step(action, "away")).done
        assert await page.evaluate() == 0.0
