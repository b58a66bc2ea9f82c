"""Native popups of a browser, in real pages and both ways of taking screens.

Each is carried out, a screen comes back, and pages beside it and after it are as ever.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import pytest_asyncio

from dart_streams.actions import Action, Click, Drag, Hotkey, MouseDown, MouseUp, Move, Scroll, Type
from dart_streams.deadline import Deadline
from tests.environments import opened, playing
from tests.integration.miniwob_backend import browser, patient, pixels, task  # noqa: F401 - a fixture
from workers.env.backends.miniwob import browser as browser_module
from workers.env.backends.miniwob import target
from workers.env.backends.miniwob.backend import MiniwobBackend
from workers.env.backends.miniwob.capture import HEIGHT, LAYOUT_HEIGHT, LAYOUT_WIDTH, WIDTH
from workers.env.backends.miniwob.page import MiniwobPage
from workers.env.backends.miniwob.page_scripts import native_script
from workers.env.environment import Screen

TASK = task("click-test", 1)
CAPTURES = ("begin-frame", "screenshot")
OPENED_PIXELS = 200
"""Minimum number of pixels that differ once a popup is open."""
LATE_FRAMES = 20
"""After which nothing more of an action is to come: a drop comes a frame or two after it."""
LATE_S = 60.0
"""Nor after so long: a permission is refused by another process, which a busy machine keeps waiting."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browsers() -> AsyncIterator[dict[str, MiniwobBackend]]:
    """A backend for each way of taking screens, of normal priority; letters typed into a list are one word."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(browser_module, "lower_priority", lambda pid: None)
        patch.setattr(
            target, "native_script", lambda *size: native_script(*size).replace("TYPING_MS = 1000", "TYPING_MS = 6e4")
        )
        async with browser(capture="begin-frame", slots=2) as frames, browser(capture="screenshot", slots=2) as shots:
            yield {"begin-frame": frames, "screenshot": shots}


class At(NamedTuple):
    """A place in an element: of its width and height, in hundredths."""

    selector: str
    across: int = 50
    down: int = 50


class Option(NamedTuple):
    """A cell of the open popup, by its text."""

    text: str


Step = Action | At | Option
ICON = At("#t", 92)
"""The part of an input that opens its picker."""


def keys(*names: str) -> list[Step]:
    """Return keys that are pressed one after the other."""
    return [Hotkey((name,)) for name in names]


MENU = "<select id=t><option>one<option>two<optgroup label=more><option disabled>three<option>four</optgroup></select>"
LONG = f"<select id=t>{''.join(f'<option>item {number}' for number in range(60))}</select>"
FRAMED = "<iframe style='width: 130px; height: 60px' {}></iframe>".format
IN_FRAME: Sequence[Step] = [Move(5, 5), Click(30, 72), Option("two")]
VALUE_IN_FRAME = "document.querySelector('iframe').contentDocument.querySelector('select').value"
INNER = "<select id=inner><option>one<option>two</select>"
DATE = "<input id=t type=date value=2024-05-10 min=2024-04-20 max=2024-06-10>"
SUGGESTED = "<input id=t list=l style='width: 90px'><datalist id=l><option>ant<option>bee<option>beetle</datalist>"
VALUE = "document.querySelector('#t').value"
EVENTS = "document.querySelector('#t').onchange = document.querySelector('#t').oninput = (e) => got.push(e.type);"
"""Notes what a control announces."""


class Case(NamedTuple):
    """Steps in a page that has some elements, and what a script finds then.

    ``opened`` numbers the step after which a popup is seen; -1: none is.
    """

    html: str
    steps: Sequence[Step]
    script: str
    wanted: Any
    opened: int = -1
    before: str = ""


def button(act: str, wanted: Any, script: str = "got", then: Sequence[Step] = ()) -> Case:
    """Return a click on a button that calls ``act``."""
    return Case("<button id=t>x</button>", [At("#t"), *then], script, wanted, before=f"act = () => {act};")


def shown(html: str, *steps: Step) -> Case:
    """Return a click on an element, or other steps, of which nothing is left to be seen but the screen."""
    return Case(html, steps or [At("#t")], "1", 1)


CASES: dict[str, Case] = {
    "a list, by the mouse": Case(
        MENU, [At("#t"), Option("two")], f"[{VALUE}, ...got]", ["two", "input", "change"], 0, EVENTS
    ),
    "a list, by its keys": Case(MENU, keys("tab", "space", "down", "down", "enter"), VALUE, "four", 1),
    "a list that F4 opens": Case(MENU, keys("tab", "f4", "t", "enter"), VALUE, "two", 1),
    "a list that Enter opens": Case(MENU, keys("tab", "enter", "down", "enter"), VALUE, "two", 1),
    "a list that Alt opens": Case(MENU, [*keys("tab"), Hotkey(("alt", "down")), *keys("end", "tab")], VALUE, "four", 1),
    "a list that is left": Case(MENU, [At("#t"), *keys("down", "escape")], f"[{VALUE}, ...got]", ["one"], 0, EVENTS),
    "a list that a click elsewhere closes": Case(MENU, [At("#t"), Click(80, 190)], "popups()", 0, 0),
    "a list that a second click closes": Case(MENU, [At("#t"), At("#t")], f"[popups(), {VALUE}]", [0, "one"], 0),
    "an option that is disabled": Case(MENU, [At("#t"), Option("three")], f"[popups(), {VALUE}]", [1, "one"], 0),
    "the label of options": Case(MENU, [At("#t"), Option("more")], f"[popups(), {VALUE}]", [1, "one"], 0),
    "a list, by press and release": Case(
        MENU, [MouseDown(20, 60), MouseUp(20, 96)], f"[popups(), {VALUE} !== 'one']", [0, True], 0
    ),
    "a list that is disabled": Case(MENU.replace("id=t", "id=t disabled"), [At("#t")], "popups()", 0),
    "a list longer than the page": Case(LONG, [At("#t"), *keys("end", "enter")], VALUE, "item 59", 0),
    "a long list that is scrolled": Case(
        LONG,
        [At("#t"), Scroll(30, 150, "down", 5), Scroll(30, 150, "down", 5), Click(30, 150)],
        f"{VALUE} > 'item 2'",
        True,
        0,
    ),
    "letters in a list": Case(LONG, [At("#t"), *keys(*"item"), *keys("space", "4", "2", "enter")], VALUE, "item 42", 0),
    "a list by a script": Case(
        f"{MENU}<button id=b>x</button>",
        [At("#b"), Option("two")],
        VALUE,
        "two",
        0,
        "document.querySelector('#b').onclick = () => document.querySelector('#t').showPicker();",
    ),
    "a list that is taken away": Case(
        MENU,
        [At("#t"), Move(5, 5)],
        "popups()",
        0,
        before="document.querySelector('#t').onfocus = (e) => setTimeout(() => e.target.remove());",
    ),
    "a list of several": Case(
        "<select id=t multiple size=3><option>one<option>two<option>three</select>",
        [Click(20, 60), Hotkey(("down",)), Hotkey(("shift", "down"))],
        f"{VALUE}",
        "two",
    ),
    "a list of three lines": Case(
        "<select id=t size=3><option>one<option>two<option>three</select>", [At("#t", 50, 50)], VALUE, "two"
    ),
    "a list that the page draws itself": Case(
        f"<style>select, ::picker(select) {{ appearance: base-select }}</style>{INNER.replace('inner', 't')}",
        [At("#t"), *keys("down", "enter")],
        VALUE,
        "two",
        0,
    ),
    **{
        f"a list in a shadow root that is {mode}": Case(
            "<div id=s style='width: 50px'></div>",
            [At("#s"), Option("two")],
            "root.querySelector('select').value",
            "two",
            0,
            f"root = document.querySelector('#s').attachShadow({{mode: '{mode}'}}); root.innerHTML = `{INNER}`;",
        )
        for mode in ("open", "closed")
    },
    "a list in a frame": Case(FRAMED(f'srcdoc="{INNER}"'), IN_FRAME, VALUE_IN_FRAME, "two", 1),
    "a list in a frame of another origin": Case(
        FRAMED(f'src="data:text/html,{INNER}"'), [Move(5, 5), Click(30, 72), *keys("down", "enter")], "1", 1, 1
    ),
    "a list in a frame that is written": Case(
        FRAMED(""),
        IN_FRAME,
        VALUE_IN_FRAME,
        "two",
        1,
        f"inner = document.querySelector('iframe').contentDocument; inner.write(`{INNER}`); inner.close();",
    ),
    "a list in a modal dialog": Case(
        f"<dialog id=d style='margin: 0; top: 60px; padding: 4px'>{MENU}</dialog>",
        [At("#t"), Option("two")],
        VALUE,
        "two",
        0,
        "document.querySelector('#d').showModal();",
    ),
    "a date, by the mouse": Case(
        DATE, [ICON, Option("21")], f"[{VALUE}, ...got]", ["2024-05-21", "input", "change"], 0, EVENTS
    ),
    "a date of another month": Case(DATE, [ICON, Option("›"), Option("3")], VALUE, "2024-06-03", 0),
    "a date, by its keys": Case(
        DATE, [At("#t", 10), Hotkey(("alt", "down")), *keys("down", "right", "enter")], VALUE, "2024-05-18", 1
    ),
    "a date past its bounds": Case(
        DATE, [ICON, Option("›"), Option("11")], f"[popups(), {VALUE}]", [1, "2024-05-10"], 0
    ),
    "a date, by its arrows": Case(DATE, [At("#t", 10), *keys("up", "right", "down")], VALUE, "2024-06-09"),
    "a time": Case("<input id=t type=time>", [ICON, Option("7"), Option("45")], VALUE, "07:45", 0),
    "a month": Case("<input id=t type=month value=2024-05>", [ICON, Option("»"), Option("Mar")], VALUE, "2025-03", 0),
    "a week": Case("<input id=t type=week value=2024-W20>", [ICON, Option("29")], VALUE, "2024-W22", 0),
    "a day and a time": Case(
        "<input id=t type=datetime-local style='width: 150px' value=2024-05-10T08:15>",
        [ICON, Option("21"), *keys("escape")],
        VALUE,
        "2024-05-21T08:15",
        0,
    ),
    "a color": Case("<input id=t type=color>", [At("#t"), *keys("right", "down", "enter")], VALUE, "#990033", 0),
    "a color, by its key": Case("<input id=t type=color>", keys("tab", "space", "end", "enter"), VALUE, "#ffffff", 1),
    "a suggestion, by the mouse": Case(SUGGESTED, [At("#t"), Option("bee")], VALUE, "bee", 0),
    "a suggestion, by its keys": Case(
        SUGGESTED, [At("#t"), Type("be"), *keys("down", "down", "enter")], VALUE, "beetle", 1
    ),
    "no suggestion": Case(SUGGESTED, [At("#t"), Type("x"), *keys("space", "y")], f"[popups(), {VALUE}]", [0, "x y"]),
    "a field that must be filled": Case(
        "<form><input id=t required style='width: 60px'><button id=b>go</button></form>",
        [At("#b")],
        "[popups(), document.activeElement.id]",
        [1, "t"],
        0,
    ),
    "a form that is only asked": Case(
        "<form><input id=t required><button id=b type=button>go</button></form>",
        [At("#b")],
        "popups()",
        0,
        before="document.querySelector('#b').onclick = (e) => e.target.form.checkValidity();",
    ),
    "alert": button("alert('text')", [None]),
    "confirm": button("confirm('text')", [True]),
    "prompt": button("prompt('text', 'as is')", ["as is"]),
    "alerts one after the other": button("{ alert(1); alert(2); return alert(3) || 3; }", [3]),
    "an alert in a drag": Case(
        "<div id=t style='height: 40px'>x</div>",
        [Drag(20, 60, 60, 80), Move(5, 5)],
        "moves > 0",
        True,
        before="moves = 0; document.querySelector('#t').onmousemove = () => { if (!moves++) alert(1); };",
    ),
    "a new window": button("window.open('about:blank')", [None]),
    "a link to a new window": shown("<a id=t target=_blank href='about:blank'>link</a>"),
    "a form to a new window": shown("<form target=_blank action='about:blank'><button id=t>x</button></form>"),
    "a download": shown("<a id=t download=x.txt href='data:text/plain,x'>link</a>"),
    "print": button("window.print()", [None]),
    "a place": button(
        "new Promise((done) => navigator.geolocation.getCurrentPosition(done, () => done('refused')))", ["refused"]
    ),
    "notifications": button("Notification.requestPermission()", 1, "got.length"),
    "a camera": button("navigator.mediaDevices.getUserMedia({video: true}).catch(() => 'refused')", ["refused"]),
    "the clipboard": button("navigator.clipboard.readText().catch(() => 0)", 1, "got.length"),
    "a locked pointer": button(
        "document.body.requestPointerLock().catch(() => 'refused')", ["refused"], "got", keys("tab")
    ),
    "a file": Case("<input id=t type=file style='width: 90px'>", [At("#t"), *keys("tab")], VALUE, ""),
    "a file by a script": button("showOpenFilePicker().catch(() => 0)", 1, "got.length"),
    "a context menu": Case(
        "<button id=t>x</button>",
        [Click(10, 60, "right"), *keys("escape")],
        "got",
        ["contextmenu"],
        before="document.querySelector('#t').oncontextmenu = (e) => got.push(e.type);",
    ),
    "a tooltip": shown("<button id=t title=text>x</button>", Move(8, 60), Move(10, 62)),
    "drag and drop": Case(
        "<div id=t draggable=true style='height: 24px'>x</div><div id=d style='height: 24px'>y</div>",
        [Drag(20, 60, 20, 86), Move(5, 5)],
        "got.filter((name, place) => name !== got[place - 1])",
        ["dragstart", "dragenter", "dragover", "drop", "dragend"],
        before="for (const name of ['dragstart', 'dragenter', 'dragover', 'drop', 'dragend'])"
        " (name.match('end|start') ? document.querySelector('#t') : document.querySelector('#d'))"
        ".addEventListener(name, (e) => { got.push(name); if (name !== 'dragstart') e.preventDefault(); });",
    ),
    "a drag that a page refuses": Case(
        "<div id=t draggable=true style='height: 24px'>x</div>",
        [Drag(20, 60, 20, 86), Move(5, 5)],
        "got",
        ["mousedown", "dragstart", "mouseup"],
        before="for (const name of ['mousedown', 'dragstart', 'mouseup', 'drop'])"
        " addEventListener(name, (e) => { got.push(name); if (name === 'dragstart') e.preventDefault(); });",
    ),
    "mail": shown("<a id=t href='mailto:a@example.com'>link</a>"),
    "a page that is left": Case("<a id=t href='about:blank'>link</a>", [At("#t"), Click(9, 99)], "document.title", ""),
    "a page that asks before it is left": Case(
        "<button id=t>x</button>",
        [At("#t"), Click(9, 99)],
        "document.title",
        "",
        before="onbeforeunload = (e) => { e.preventDefault(); return 1; };"
        " act = () => { location.href = 'about:blank'; };",
    ),
    "a document that is written anew": Case(
        "<button id=t>x</button>",
        [At("#t"), At("#n"), Option("two")],
        "document.querySelector('#n').value",
        "two",
        1,
        f"act = () => {{ document.write(`{INNER.replace('inner', 'n')}`); document.close(); }};",
    ),
}
SET_UP = """(() => {{
  window.got = [];
  window.act = null;
  document.querySelector('#area').innerHTML = {html!r};
  {before}
  const button = document.querySelector('#t');
  if (act) button.onclick = () => Promise.resolve(act()).then((value) => got.push(value === undefined ? null : value));
  window.popups = () => document.querySelectorAll('dart-popup').length;
}})()"""
BOX = """(() => {{
  const box = document.querySelector({selector!r}).getBoundingClientRect();
  return [box.left, box.top, Math.min(box.right, 158), Math.min(box.bottom, 208)];
}})()"""
CELL = """(() => {{
  const [popup] = document.querySelectorAll('dart-popup');
  const cells = Array.from(popup.shadowRoot.querySelectorAll('span')).filter((cell) => cell.textContent === {text!r});
  const box = cells[0].getBoundingClientRect();
  return [box.left, box.top, box.right, box.bottom];
}})()"""


async def carried_out(page: MiniwobPage, step: Step) -> Action:
    """Return the action of a step, at the place that it names."""
    match step:
        case At(selector, across, down):
            left, top, right, bottom = await page.evaluate_script(BOX.format(selector=selector))
            return Click(round(left + (right - left) * across / 100), round(top + (bottom - top) * down / 100))
        case Option(text):
            left, top, right, bottom = await page.evaluate_script(CELL.format(text=text))
            return Click(round((left + right) / 2), round((top + bottom) / 2))
    return step


def changed(before: Screen, after: Screen) -> int:
    """Return how many pixels of two screens differ."""
    return int((np.abs(pixels(before).astype(int) - pixels(after).astype(int)).max(axis=2) > 0).sum())


async def awaited_value(page: MiniwobPage, case: Case) -> Any:
    """Return what the case's script finds, once it is what is wanted or nothing more is to come."""
    deadline, frames = Deadline(LATE_S), 0
    while (value := await page.evaluate_script(case.script)) != case.wanted:
        if frames >= LATE_FRAMES and deadline.expired:
            break
        await page.target.draw()  # What is late is drawn, and its events are sent.
        frames += 1
    return value


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.asyncio(loop_scope="module")
async def test_what_has_a_window_of_its_own_is_carried_out(browsers, name, capture):
    case, backend = CASES[name], browsers[capture]
    browser_before, pages_before = backend.browsers[0].browser, await pages_of(backend)
    async with opened(backend, TASK) as (page, fresh):
        await page.evaluate_script(SET_UP.format(html=case.html, before=case.before))
        screens = [await page.step(Move(0, 0), "start")]
        for number, step in enumerate(case.steps):
            screens.append(await page.step(await carried_out(page, step), str(number)))
            assert not screens[-1].done
        if case.opened >= 0:
            assert changed(screens[case.opened], screens[case.opened + 1]) >= OPENED_PIXELS
        assert await awaited_value(page, case) == case.wanted
    async with opened(backend, TASK) as (again, screen):
        assert again.pooled is page.pooled
        assert screen.image == fresh.image
    assert backend.browsers[0].browser is browser_before
    assert len(await pages_of(backend)) <= len(pages_before) + 1, "windows were left open"


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.asyncio(loop_scope="module")
async def test_a_page_may_leave_its_document_at_any_moment_of_a_step(browsers, capture):
    """Chromium never answers a wheel or a screenshot during a navigation, and rejects a script."""
    for delay_ms in range(0, 60, 4):
        async with playing(browsers[capture], TASK) as page:
            await page.evaluate_script(f"setTimeout(() => {{ location.href = 'about:blank'; }}, {delay_ms}); 0")
            steps, left, deadline = 0, False, Deadline(LATE_S)
            while not left or steps < 2:
                left = not await page.evaluate_script("document.title")  # The page may leave after a screen is drawn.
                steps += 1
                screen = await page.step(Scroll(9, 99, "down"), f"{steps}")
                assert (screen.done, pixels(screen).shape) == (False, (HEIGHT, WIDTH, 3))
                assert not deadline.expired
            assert (pixels(screen) == 255).all()
            assert await page.evaluate_script("[innerWidth, innerHeight]") == [LAYOUT_WIDTH, LAYOUT_HEIGHT]


async def pages_of(backend: MiniwobBackend) -> list[str]:
    """Return the addresses of the pages that a browser has, besides the one that it began with."""
    assert backend.browsers[0].browser is not None
    targets = (await backend.browsers[0].browser.devtools.call("Target.getTargets"))["targetInfos"]
    return [target["url"] for target in targets if target["type"] == "page"][1:]


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.asyncio(loop_scope="module")
async def test_choose_list_is_solved_by_the_mouse_and_by_keys(browsers, capture):
    for seed in range(4):
        chosen = task("choose-list", seed)
        async with opened(browsers[capture], chosen) as (page, before):
            wanted = await page.evaluate_script("/Select (.*) from/.exec(core.getUtterance())[1]")
            shown_list = await page.step(await carried_out(page, At("#options")), "open")
            assert changed(before, shown_list) >= OPENED_PIXELS
            steps: Sequence[Step] = [Option(wanted)] if seed % 2 else [*keys(*wanted), *keys("enter")]
            for number, step in enumerate([*steps, At(".secondary-action")]):
                ended = await page.step(await carried_out(page, step), f"{number}")
            assert (ended.done, await page.evaluate()) == (True, 1.0), wanted


@pytest.mark.parametrize("capture", CAPTURES)
async def test_a_popup_that_an_episode_left_open_is_not_the_next_one_s(capture):
    async with browser(isolation="problem", capture=capture, slots=1) as backend:
        async with playing(backend, TASK) as page:
            await page.evaluate_script(f"document.body.insertAdjacentHTML('beforeend', {MENU!r})")
            await page.step(Hotkey(("tab",)), "tab")
            for number in range(3):
                await page.step(Hotkey(("shift", "tab")), f"tab-{number}")
                if await page.evaluate_script("document.activeElement.localName") == "select":
                    break
            await page.step(Hotkey(("space",)), "open")
            assert await page.evaluate_script("document.querySelectorAll('dart-popup').length") == 1
        async with playing(backend, TASK) as again:
            assert again.target is page.target
            assert await again.evaluate_script("document.querySelectorAll('dart-popup').length") == 0
            await again.step(Hotkey(("down",)), "down")
