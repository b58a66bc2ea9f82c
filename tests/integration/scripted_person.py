"""A person of a few lines at the page of ``dart-streams demonstrate``: a real mouse and keyboard in a real browser."""

import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from dart_streams import actions
from dart_streams.actions import Click, Drag, Type
from tests.integration.page_browser import Tab, browser_tab

PROGRAM = Path(sys.executable).parent / "dart-streams"
BUTTONS = {"left": 1, "right": 2, "middle": 4}
IMAGE = "document.getElementById('screen')"
SAID = "document.getElementById('said')?.textContent"
STAGE = "document.body?.dataset.stage"
TAKEN = "document.querySelectorAll('#taken li').length"
DRAWN = f"({IMAGE}.complete && {IMAGE}.naturalWidth > 0)"


@contextlib.contextmanager
def demonstrating(task: str, *options: object, log: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run ``dart-streams demonstrate`` as a process, killed at the end; yield it and the address of its page."""
    command = [str(PROGRAM), "demonstrate", task, *map(str, options), "--json"]
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            said = ""
            for line in process.stdout:
                said += line
                with contextlib.suppress(json.JSONDecodeError):
                    yield process, str(json.loads(said)["url"])
                    return
            raise AssertionError(f"no address: {said} {log.read_text()}")
        finally:
            process.kill()


class ScriptedPerson:
    """Plays in a tab by what the page shows."""

    def __init__(self, tab: Tab) -> None:
        self.tab = tab

    async def begin(self) -> None:
        """Begin an episode, and wait for its first screen; begin again where the environment failed before it."""
        begun = f"{STAGE} === 'turn' && {TAKEN} === 0 && {DRAWN} && 'begun'"
        failed = f"{STAGE} === 'ended' && {SAID}?.startsWith('env_error') && {SAID}.endsWith('recorded')"
        while True:
            await self.tab.click("#begin:not([hidden])")
            if await self.tab.until(f"{begun} || {failed}", "the first screen") == "begun":
                return

    async def turn(self, taken: int) -> None:
        """Wait for the person's turn after this number of actions."""
        is_turn = f"document.body.dataset.stage === 'turn' && {TAKEN} === {taken}"
        await self.tab.until(f"{is_turn} && {DRAWN}", f"the turn after {taken} actions")

    async def end(self) -> str:
        """Wait for the end, and return what the page says of it."""
        await self.tab.until("document.body.dataset.stage === 'ended'", "the end of the episode")
        await self.tab.until("document.getElementById('said').textContent.endsWith('recorded')", "the recorder")
        return await self.tab.text("#said")

    async def do(self, action: actions.Action) -> None:
        """Do what an action stands for, with mouse or keyboard."""
        if isinstance(action, Click):
            await self.click(action.x, action.y, action.button, action.count)
        elif isinstance(action, Drag):
            await self.drag((action.x, action.y), (action.to_x, action.to_y))
        else:
            assert isinstance(action, Type)
            for character in action.content:
                await self.tab.press(character)

    async def place(self, x: float, y: float) -> tuple[float, float]:
        """Return the place in the window of the middle of a pixel of the screenshot."""
        box = "((box) => [box.x, box.y, box.width, box.height])(IMAGE.getBoundingClientRect())".replace("IMAGE", IMAGE)
        left, top, width, height = await self.tab.js(box)
        of_width, of_height = await self.tab.js("[IMAGE.naturalWidth, IMAGE.naturalHeight]".replace("IMAGE", IMAGE))
        return left + (x + 0.5) * width / of_width, top + (y + 0.5) * height / of_height

    async def mouse(self, kind: str, x: float, y: float, button: str = "none", **more: Any) -> None:
        """Send one event of the mouse."""
        held = BUTTONS.get(button, 0) if kind != "mouseReleased" else 0
        await self.tab.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, buttons=held, **more)

    async def click(self, x: int, y: int, button: str = "left", count: int = 1) -> None:
        """Click at a place of the screenshot."""
        at = await self.place(x, y)
        for number in range(1, count + 1):
            await self.mouse("mousePressed", *at, button, clickCount=number)
            await self.mouse("mouseReleased", *at, button, clickCount=number)

    async def drag(self, start: tuple[int, int], end: tuple[int, int]) -> None:
        """Drag from one place of the screenshot to another."""
        begin, stop = await self.place(*start), await self.place(*end)
        await self.mouse("mousePressed", *begin, "left", clickCount=1)
        await self.mouse("mouseMoved", (begin[0] + stop[0]) / 2, (begin[1] + stop[1]) / 2, "left")
        await self.mouse("mouseMoved", *stop, "left")
        await self.mouse("mouseReleased", *stop, "left", clickCount=1)

    async def scroll(self, x: int, y: int, down: float) -> None:
        """Turn the wheel at a place of the screenshot."""
        await self.mouse("mouseWheel", *await self.place(x, y), deltaX=0, deltaY=down)

    async def chord(self, key: str, code: int, modifiers: int) -> None:
        """Press a key with modifiers (2: Ctrl)."""
        for kind in ("rawKeyDown", "keyUp"):
            await self.tab.call(
                "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, modifiers=modifiers
            )


@contextlib.asynccontextmanager
async def person_at(url: str, shots: Path) -> AsyncIterator[ScriptedPerson]:
    """Yield a person before a page in a browser of their own."""
    async with browser_tab(shots) as tab:
        await tab.open(url)
        await tab.until("document.getElementById('said').textContent !== 'connecting…'", "the page")
        yield ScriptedPerson(tab)
