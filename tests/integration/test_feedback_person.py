"""The person of ``bench feedback`` finds the first wrong action of a rollout, by playing it again in a real browser."""

from pathlib import Path

import pytest

from benchmarks import modes
from benchmarks.feedback.person import WrongAction, first_wrong, next_wanted, own_browser
from dart_streams.actions import Action, Click, Wait
from tests.integration.miniwob_backend import browser
from tests.integration.miniwob_backend import task as page_task

PAGE = "click-collapsible"
NOWHERE = Click(2, 205)
OTHER = """(() => {
  const box = [...document.querySelectorAll('button')].find((one) => one.textContent === 'TWO').getBoundingClientRect();
  return [Math.round(box.x + box.width / 2), Math.round(box.y + box.height / 2)];
})()"""
"""The middle of the wrong one of two buttons."""


async def solution(backend, seed: int, name: str = PAGE) -> list[Action]:
    """Return the oracle's actions, which solve the page."""
    page = await backend.open(chosen := page_task(name, seed))
    await page.reset(chosen)
    found = []
    async for action in page.demonstrate(chosen):
        found.append(action)
        await page.step(action, str(len(found)))
    assert await page.evaluate() == 1
    await page.close()
    return found


@pytest.mark.parametrize("seed", [3, 4])
async def test_the_first_action_without_effect_is_the_wrong_one(seed):
    async with browser(slots=1) as backend:
        opening, submit = await solution(backend, seed)
        for taken, wrong in (
            ([NOWHERE, Wait()], WrongAction(0, opening)),
            ([NOWHERE, opening], WrongAction(0, opening)),
            ([opening, NOWHERE], WrongAction(1, submit)),
            ([opening, submit], None),
            ([opening], None),
            ([], None),
        ):
            assert await first_wrong(backend, page_task(PAGE, seed), taken) == wrong, taken


async def test_an_action_that_ends_the_episode_without_success_is_wrong():
    chosen = page_task("click-test-2", 1)
    async with browser(slots=1) as backend:
        page = await backend.open(chosen)
        await page.reset(chosen)
        right = await next_wanted(page, chosen)
        other = Click(*await page.evaluate_script(OTHER))
        await page.close()
        assert await first_wrong(backend, chosen, [other]) == WrongAction(0, right)
        assert await first_wrong(backend, chosen, [right]) is None


async def test_the_page_of_three_buttons_ends_at_the_first_wrong_one():
    config = modes.load_config(Path("benchmarks/feedback/hard.toml"))
    chosen = page_task("three-buttons", 3)
    async with own_browser(config) as backend:
        first, second, third = await solution(backend, 3, "three-buttons")
        assert await first_wrong(backend, chosen, [third]) == WrongAction(0, first)
        assert await first_wrong(backend, chosen, [first, second, first]) == WrongAction(2, third)
        assert await first_wrong(backend, chosen, [first, second, third]) is None
