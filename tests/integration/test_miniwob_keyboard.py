"""The keyboard types the expected text into a real page, in both ways of taking screens."""

import pytest

from dart_streams.actions import Hotkey, Type
from tests.environments import playing
from tests.integration.miniwob_backend import browser, task
from tests.keyboard import EDITED, TYPED

TASK = task("click-test", 1)
FIELD = """(() => {
  const field = document.createElement('textarea');
  document.body.appendChild(field);
  field.focus();
  window.field = field;
})()"""


@pytest.mark.parametrize("capture", ["begin-frame", "screenshot"])
async def test_the_keyboard_types_into_a_page_what_it_types_on_a_desktop(capture):
    async with browser(capture=capture, slots=1) as backend, playing(backend, TASK) as page:
        await page.evaluate_script(FIELD)
        found = []
        for sequence, _ in (*TYPED, *EDITED):
            await page.evaluate_script("field.value = ''")
            for action in sequence:
                await page.target.act(action)
            found.append(await page.evaluate_script("field.value"))
        assert found == [text for _, text in (*TYPED, *EDITED)]
        for keys in (("ctrl", "a"), ("Control", "A")):
            await page.target.act(Type("old"))
            await page.target.act(Hotkey(keys))
            await page.target.act(Type("new"))
            assert await page.evaluate_script("field.value") == "new"
        await page.target.act(Hotkey(("ctrl", "z")))
        assert await page.evaluate_script("field.value") != "new"
        await page.target.act(Hotkey(("ctrl", "shift", "z")))
        assert await page.evaluate_script("field.value") == "new"


TWO_FIELDS = """(() => {
  window.pressed = [];
  addEventListener('keydown', (event) => pressed.push(event.key));
  for (const name of ['input', 'textarea']) window[name] = document.body.appendChild(document.createElement(name));
  input.focus();
})()"""


@pytest.mark.parametrize("capture", ["begin-frame", "screenshot"])
async def test_a_page_that_listens_to_keys_gets_what_is_typed(capture):
    """A character without a key is inserted, a tab moves on, and a line has one end."""
    async with browser(capture=capture, slots=1) as backend, playing(backend, TASK) as page:
        await page.evaluate_script(TWO_FIELDS)
        await page.target.act(Type("A\u00f1!\tb\r\nc\nd"))
        assert await page.evaluate_script("pressed.join(' ')") == "A ! Tab b Enter c Enter d"
        assert await page.evaluate_script("[input.value, textarea.value]") == ["A\u00f1!", "b\nc\nd"]


async def test_a_date_is_typed_into_a_field_that_has_parts():
    async with browser(slots=1) as backend, playing(backend, task("enter-date", 1)) as page:
        month, day, year = (await page.evaluate_script("query.textContent")).split()[1].split("/")
        await page.evaluate_script("tt.focus()")
        await page.target.act(Type(f"{month}/{day}/{year}"))
        assert await page.evaluate_script("tt.value") == f"{year}-{month}-{day}"
