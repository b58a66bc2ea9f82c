"""Functions of pyautogui that few programs call: pictures of the screen, facts, and its mini-language.

The replacement of pyautogui in a sandbox imports it when one of them is first called.
"""

import contextlib
import datetime
import functools
import os
import platform
import re
import sys
import time
from collections.abc import Callable
from typing import Any

import pyautogui

VERSION = "0.9.54"
SHIFT_CHARACTERS = '~!@#$%^&*()_+{}|:"<>?'
CLICKS = {"c": "left", "l": "left", "m": "middle", "r": "right"}
COMMAND = re.compile(
    r"(?:(?P<plain>su|sd|ss|[clmr])|(?P<place>[gd])\s*(?P<x>[+-]?\d+)\s*,\s*(?P<y>[+-]?\d+)"
    r"|(?P<text>[kwha])\s*'(?P<said>[^']*)'|(?P<number>[sp])\s*(?P<value>\d*\.?\d+)|f\s*(?P<times>\d+)\s*\()\s*"
)
"""A command of the mini-language, or the start of a loop."""


def screenshot(imageFilename: Any = None, region: Any = None, *_: Any, **__: Any) -> Any:
    """Return a PIL image of the screen or of ``region`` (left, top, width, height), written to a file if named."""
    from PIL import ImageGrab

    grabbed = ImageGrab.grab(xdisplay=os.environ["DISPLAY"])
    if region is not None:
        left, top, width, height = map(int, region)
        grabbed = grabbed.crop((left, top, left + width, top + height))
    if imageFilename is not None:
        grabbed.save(imageFilename)
    return grabbed


def useImageNotFoundException(value: "bool | None" = None) -> None:
    """Have a missing image raise ImageNotFoundException, or be None."""
    import pyscreeze

    pyscreeze.USE_IMAGE_NOT_FOUND_EXCEPTION = value is None or value


def raisePyAutoGUIImageNotFoundException(wrappedFunction: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with pyscreeze's exception of a missing image replaced by pyautogui's."""

    @functools.wraps(wrappedFunction)
    def call(*given: Any, **named: Any) -> Any:
        import pyscreeze

        try:
            return wrappedFunction(*given, **named)
        except pyscreeze.ImageNotFoundException as error:
            raise pyautogui.ImageNotFoundException(*error.args) from error

    return call


def isShiftCharacter(character: str) -> bool:
    """Return whether a US keyboard types a character with Shift."""
    return character.isupper() or character in SHIFT_CHARACTERS


def getPointOnLine(x1: float, y1: float, x2: float, y2: float, n: float) -> "tuple[float, float]":
    """Return the position at the part ``n`` of a line."""
    return (x2 - x1) * n + x1, (y2 - y1) * n + y1


def getInfo() -> "tuple[Any, ...]":
    """Return platform, versions of Python and pyautogui, program, screen size and time."""
    now = datetime.datetime.now()
    return sys.platform, platform.python_version(), VERSION, sys.executable, pyautogui.size(), now


def printInfo(dontPrint: bool = False) -> str:
    """Return what :func:`getInfo` returns as text, printed unless ``dontPrint``."""
    names = ("Platform", "Python Version", "PyAutoGUI Version", "Executable", "Resolution", "Timestamp")
    text = "".join(f"{name:>17}: {value}\n" for name, value in zip(names, getInfo(), strict=True))
    if not dontPrint:
        write_now(text)
    return text


def countdown(seconds: int) -> None:
    """Print the seconds that are left, and sleep meanwhile."""
    for left in range(int(seconds), 0, -1):
        write_now(f"{left} ")
        time.sleep(1)
    write_now("\n")


def displayMousePosition(xOffset: int = 0, yOffset: int = 0) -> None:
    """Print the pointer's position until Ctrl-C."""
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            here = pyautogui.position()
            write_now(f"\rX: {here.x - xOffset:>4} Y: {here.y - yOffset:>4}")
            time.sleep(0.1)


def write_now(text: str) -> None:
    """Write to standard output without delay."""
    sys.stdout.write(text)
    sys.stdout.flush()


def refusing(name: str) -> Callable[..., Any]:
    """Return a function that raises, as pyautogui's does on Linux, where it knows no windows."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise pyautogui.PyAutoGUIException(f"pyautogui.{name} does not exist on Linux: call wmctrl for windows")

    return refuse


getActiveWindow, getActiveWindowTitle = refusing("getActiveWindow"), refusing("getActiveWindowTitle")
getAllTitles, getAllWindows = refusing("getAllTitles"), refusing("getAllWindows")
getWindowsAt, getWindowsWithTitle = refusing("getWindowsAt"), refusing("getWindowsWithTitle")
Window, mouseInfo = refusing("Window"), refusing("mouseInfo")


def run(commandStr: str, _ssCount: Any = None) -> None:
    """Run commands of pyautogui's mini-language, such as ``g10,20 c w'text' s0.5 f2(k'enter')``.

    A pause that they set ends with them. Raises PyAutoGUIException for what is no command.
    """
    before = pyautogui.PAUSE
    try:
        run_commands(commandStr, [0] if _ssCount is None else _ssCount)
    finally:
        pyautogui.PAUSE = before


def run_commands(source: str, shots: "list[int]") -> None:
    """Run commands; ``shots`` has the number of the next picture."""
    rest = source.strip()
    while rest:
        found = COMMAND.match(rest)
        if found is None:
            raise pyautogui.PyAutoGUIException(f"no command of pyautogui.run: {rest!r}")
        rest = rest[found.end() :]
        if found["times"]:
            end = loop_end(rest)
            for _number in range(int(found["times"])):
                run_commands(rest[:end], shots)
            rest = rest[end + 1 :].lstrip()
        else:
            run_command(found, shots)


def loop_end(commands: str) -> int:
    """Return the position of the parenthesis that ends the loop whose commands begin ``commands``."""
    depth, quoted = 1, False
    for place, character in enumerate(commands):
        quoted ^= character == "'"
        depth += 0 if quoted else {"(": 1, ")": -1}.get(character, 0)
        if not depth:
            return place
    raise pyautogui.PyAutoGUIException("a loop of pyautogui.run has no closing parenthesis")


def run_command(found: Any, shots: "list[int]") -> None:
    """Run one command."""
    plain, said = found["plain"], found["said"]
    if plain in CLICKS:
        pyautogui.click(button=CLICKS[plain])
    elif plain == "ss":
        screenshot(f"screenshot{shots[0]}.png")
        shots[0] += 1
    elif plain:
        pyautogui.scroll(1 if plain == "su" else -1)
    elif found["place"]:
        relative = found["x"][0] in "+-" and found["y"][0] in "+-"
        ways = {"g": (pyautogui.moveTo, pyautogui.moveRel), "d": (pyautogui.dragTo, pyautogui.dragRel)}
        ways[found["place"]][relative](int(found["x"]), int(found["y"]))
    elif found["text"] == "h":
        pyautogui.hotkey(*said.replace(" ", "").split(","))
    elif found["text"]:
        {"k": pyautogui.press, "w": pyautogui.write, "a": pyautogui.alert}[found["text"]](said)
    elif found["number"] == "s":
        time.sleep(float(found["value"]))
    else:
        pyautogui.PAUSE = float(found["value"])
