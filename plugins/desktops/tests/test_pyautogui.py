"""Programs that import pyautogui and pyperclip on a real desktop: what agents of OSWorld call does what it says."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from dart_desktops.desktop.guest.pyautogui import BORROWED, KEYS
from dart_desktops.desktop.sandbox import further_packages
from dart_desktops.osworld.machine import Machine
from plugins.desktops.tests.served_desktops import served, wait_for_window

pytestmark = pytest.mark.asyncio(loop_scope="module")
HEAD = "import json, time, pyautogui, pyperclip\npyautogui.FAILSAFE = False\n"
ENTRY = "rm -f /tmp/accepted; (zenity --entry --title typed > /tmp/typed; touch /tmp/accepted) > /dev/null 2>&1 & true"
ACCEPTED = "until [ -e /tmp/accepted ]; do sleep 0.1; done; cat /tmp/typed"
LEASE_S = 600.0
MODULES = (
    *("bs4", "cv2", "docx", "lxml.etree", "numpy", "openpyxl", "pandas", "PIL", "pptx", "psutil", "requests"),
    *("pyautogui", "pymsgbox", "pyperclip", "pyscreeze", "pytweening", "tkinter", "uno", "Xlib"),
)
"""What OSWorld's agents import on the machine."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def machine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Machine]:
    folder = tmp_path_factory.mktemp("served")
    async with served(folder, slots=1, lease_s=LEASE_S) as running, running.machine() as client:
        client.call_timeout_s = 120.0
        yield client


async def printed(machine: Machine, source: str) -> Any:
    """Run a program as OSWorld's controller does; return the JSON that it prints last."""
    ended = await machine.execute(["python", "-c", HEAD + source])
    assert ended["returncode"] == 0, ended["error"]
    return json.loads(ended["output"].splitlines()[-1]) if ended["output"].strip() else None


@pytest.mark.skipif(not further_packages(), reason="needs .venv/osworld-guest: run `make osworld`")
@pytest.mark.parametrize("name", MODULES)
async def test_each_module_of_agents_is_imported(machine, name):
    source = f"import {name}\nprint(json.dumps({name}.__name__))"
    assert await printed(machine, source) == name


@pytest.mark.skipif(not further_packages(), reason="needs .venv/osworld-guest: run `make osworld`")
async def test_an_agent_s_program_writes_a_workbook_and_slides(machine):
    source = (
        "import openpyxl, pandas, pptx\n"
        "pandas.DataFrame({'a': [1, 2]}).to_excel('/tmp/made.xlsx', index=False)\n"
        "deck = pptx.Presentation()\ndeck.slides.add_slide(deck.slide_layouts[6])\ndeck.save('/tmp/made.pptx')\n"
        "cells = [[cell.value for cell in row] for row in openpyxl.load_workbook('/tmp/made.xlsx').active.rows]\n"
        "print(json.dumps([cells, len(pptx.Presentation('/tmp/made.pptx').slides)]))"
    )
    assert await printed(machine, source) == [[["a"], [1], [2]], 1]


async def test_the_system_s_own_programs_keep_their_python_packages(machine):
    found = (await machine.execute(["/usr/bin/python3", "-E", "-c", "import PIL; print(PIL.__file__)"]))["output"]
    assert found.startswith("/usr/lib/python3")


async def typed(machine: Machine, source: str) -> str:
    """Return what a program types into a text field, which it then accepts."""
    await machine.execute(ENTRY, shell=True)
    await wait_for_window(machine, "typed")
    await printed(machine, f"{source}\npyautogui.press('enter')")
    return str((await machine.execute(ACCEPTED, shell=True))["output"]).removesuffix("\n")


async def test_a_copied_text_is_pasted_as_agents_type(machine):
    source = "pyperclip.copy('naïve 日本 <&>')\ntime.sleep(0.2)\npyautogui.hotkey('ctrl', 'v')"
    assert await typed(machine, source) == "naïve 日本 <&>"
    assert await printed(machine, "print(json.dumps(pyperclip.paste()))") == "naïve 日本 <&>"


async def test_keys_of_the_keypad_type(machine):
    keys = [*(f"num{number}" for number in range(10)), "add", "subtract", "multiply", "divide", "decimal"]
    assert await typed(machine, f"pyautogui.press({keys})") in {"0123456789+-*/.", "0123456789+-*/,"}


async def test_every_key_of_the_keyboard_is_pressed_or_said_to_be_none(machine):
    source = "print(json.dumps([pyautogui.press(key, 2) for key in pyautogui.KEY_NAMES if len(key) > 1].count(None)))"
    count = await printed(machine, source)
    assert count == await printed(machine, "print(sum(len(key) > 1 for key in pyautogui.KEY_NAMES))")
    assert count > len([key for key in KEYS if len(key) > 1])
    source = "print(json.dumps([pyautogui.isValidKey(key) for key in ('num5', 'a', 'yen')]))"
    assert await printed(machine, source) == [True, True, False]


async def test_the_pointer_follows_an_easing_function(machine):
    source = (
        "pyautogui.moveTo(10, 10)\n"
        "seen, send = [], pyautogui._desktop.send\n"
        "def kept(*events):\n    seen.extend(e[1] for e in events if e[0] == 'move')\n    return send(*events)\n"
        "pyautogui._desktop.send = kept\n"
        "pyautogui.moveTo(210, 10, 0.5, pyautogui.easeInQuad)\n"
        "print(json.dumps([seen, list(pyautogui.position())]))"
    )
    places, end = await printed(machine, source)
    assert end == [210, 10]
    assert places == sorted(places)
    assert places[len(places) // 2] < 10 + 0.3 * 200, "slow at first: a quarter of the way in half of the time"


async def test_each_easing_function_ends_at_its_end(machine):
    source = f"print(json.dumps([getattr(pyautogui, name)(1.0) for name in {BORROWED['pytweening'].split()}]))"
    assert await printed(machine, source) == pytest.approx([1.0] * 31, abs=0.01)


async def test_pictures_of_the_screen_are_taken_and_found(machine):
    await machine.execute("zenity --info --title seen --text 'a picture' & true", shell=True)
    await wait_for_window(machine, "seen")
    source = (
        "whole = pyautogui.screenshot('/tmp/whole.png')\n"
        "wanted = [c for c in whole.resize((64, 48)).getcolors(9999)]\n"
        "x, y = whole.size[0] // 2, whole.size[1] // 2\n"
        "pyautogui.screenshot('/tmp/part.png', region=(x - 60, y - 30, 120, 60))\n"
        "found = pyautogui.locateOnScreen('/tmp/part.png')\n"
        "print(json.dumps([list(whole.size), list(pyautogui.size()), list(map(int, found)), len(wanted) > 1,"
        " pyautogui.pixelMatchesColor(x, y, tuple(pyautogui.pixel(x, y)))]))"
    )
    size, same, found, drawn, matches = await printed(machine, source)
    assert size == same and drawn and matches
    assert found[2:] == [120, 60]
    source = (
        "from PIL import Image\nImage.effect_noise((40, 40), 90).convert('RGB').save('/tmp/absent.png')\n"
        "try:\n    pyautogui.locateOnScreen('/tmp/absent.png')\n"
        "except pyautogui.ImageNotFoundException as error:\n    print(json.dumps('absent'))"
    )
    assert await printed(machine, source) == "absent"
    await machine.execute("pkill zenity", shell=True)


async def test_the_mini_language_runs(machine):
    assert await typed(machine, "pyautogui.run(\"f2(w'ab' s0.1) k'backspace' h'shift,x'\")") == "abaX"
    source = "pyautogui.run('g100,50 g+10,-5')\nprint(json.dumps(list(pyautogui.position())))"
    assert await printed(machine, source) == [110, 45]


async def test_the_fail_safe_ends_a_program_that_wants_it(machine):
    source = (
        "pyautogui.moveTo(0, 0)\npyautogui.FAILSAFE = True\n"
        "try:\n    pyautogui.press('a')\nexcept pyautogui.FailSafeException:\n    print(json.dumps('stopped'))"
    )
    assert await printed(machine, source) == "stopped"


@pytest.mark.parametrize(
    ("call", "moved", "button"),
    [
        ("leftClick(40, 50, 0, 0.1)", [40, 50], "left"),
        ("rightClick(x=41, y=50, duration=0.1)", [41, 50], "right"),
        ("middleClick(42, 50)", [42, 50], "middle"),
        ("doubleClick(43, 50, 0, 'right', 0.1)", [43, 50], "right"),
        ("tripleClick(44, 50, button=pyautogui.SECONDARY)", [44, 50], "right"),
        ("click(45, 50)", [45, 50], "left"),
    ],
)
async def test_the_arguments_of_clicks_are_in_the_package_s_order(machine, call, moved, button):
    source = (
        "pressed, send = [], pyautogui._desktop.send\n"
        "def kept(*events):\n    pressed.extend(e[1] for e in events if e[0] == 'press')\n    return send(*events)\n"
        "pyautogui._desktop.send = kept\n"
        f"pyautogui.{call}\nprint(json.dumps([list(pyautogui.position()), pressed]))"
    )
    place, pressed = await printed(machine, source)
    assert place == moved
    assert set(pressed) == {button}
