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
