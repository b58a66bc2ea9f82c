"""Replacement of pyautogui 0.9.54 in a sandbox: its public functions, by the input socket of the sandbox's server.

Programs of remote clients import it by that name. It starts in a few milliseconds, and types every character. Easing,
message boxes and pictures are those of the packages that pyautogui itself uses, imported when first called.
"""

import contextlib
import importlib
import json
import socket
import time
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from typing import Any

ADDRESS = "\0dart-desktop-input"
NOTCH_LIMIT = 1000
PAUSE = 0.0
FAILSAFE = False
FAILSAFE_POINTS = [(0, 0)]
TYPES_ANY_CHARACTER = True
"""Lets a client type characters directly that the real pyautogui omits."""
MINIMUM_DURATION, MINIMUM_SLEEP, DARWIN_CATCH_UP_TIME = 0.1, 0.05, 0.01
LOG_SCREENSHOTS, LOG_SCREENSHOTS_LIMIT = False, 10
LEFT, MIDDLE, RIGHT, PRIMARY, SECONDARY = "left", "middle", "right", "primary", "secondary"
QWERTY = "`1234567890-=qwertyuiop[]\\asdfghjkl;'zxcvbnm,./~!@#$%^&*()_+QWERTYUIOP{}|ASDFGHJKL:\"ZXCVBNM<>?"
QWERTZ = "=1234567890/0qwertzuiop89-asdfghjkl,\\yxcvbnm,.7+!@#$%^&*()?)QWERTZUIOP*(_ASDFGHJKL<|YXCVBNM<>&"
BUTTONS = {1: "left", 2: "middle", 3: "right", "primary": "left", "secondary": "right"}
NAMES = """
    enter:Return return:Return tab:Tab esc:Escape escape:Escape backspace:BackSpace del:Delete delete:Delete
    insert:Insert space:space home:Home end:End pageup:Prior pgup:Prior pagedown:Next pgdn:Next left:Left up:Up
    right:Right down:Down capslock:Caps_Lock numlock:Num_Lock scrolllock:Scroll_Lock pause:Pause apps:Menu print:Print
    printscreen:Print prntscrn:Print prtsc:Print prtscr:Print ctrl:Control_L ctrlleft:Control_L ctrlright:Control_R
    shift:Shift_L shiftleft:Shift_L shiftright:Shift_R alt:Alt_L altleft:Alt_L altright:Alt_R option:Alt_L
    win:Super_L winleft:Super_L winright:Super_R command:Super_L super:Super_L optionleft:Alt_L optionright:Alt_R
    add:KP_Add subtract:KP_Subtract multiply:KP_Multiply divide:KP_Divide decimal:period help:Help select:Select
    execute:Execute
"""
WITHOUT_KEY = """
    accept browserback browserfavorites browserforward browserhome browserrefresh browsersearch browserstop clear
    convert final fn hanguel hangul hanja junja kana kanji launchapp1 launchapp2 launchmail launchmediaselect modechange
    nexttrack nonconvert playpause prevtrack separator sleep stop volumedown volumemute volumeup yen
"""
"""Names that no key of a sandbox's keyboard has; pressing one does nothing, as in pyautogui on X11."""
KEYS = {
    **{f"num{number}": str(number) for number in range(10)},
    "\n": "Return",
    "\r": "Return",
    "\t": "Tab",
    " ": "space",
    **{f"f{number}": f"F{number}" for number in range(1, 25)},
    **dict(pair.split(":") for pair in NAMES.split()),
}
KEY_NAMES = KEYBOARD_KEYS = [*KEYS, *WITHOUT_KEY.split(), *map(chr, range(33, 127))]
WAYS = ("In", "Out", "InOut")
CURVES = ("Quad", "Cubic", "Quart", "Quint", "Sine", "Expo", "Circ", "Elastic", "Back", "Bounce")
BORROWED = {
    "pytweening": " ".join(["linear", *(f"ease{way}{curve}" for way in WAYS for curve in CURVES)]),
    "pymsgbox": "alert confirm prompt password",
    "pyscreeze": "center pixel pixelMatchesColor locate locateAll locateAllOnScreen locateCenterOnScreen locateOnScreen"
    " locateOnWindow",
    "pyautogui_further": "countdown displayMousePosition getActiveWindow getActiveWindowTitle getAllTitles"
    " getAllWindows getInfo getPointOnLine getWindowsAt getWindowsWithTitle isShiftCharacter mouseInfo printInfo"
    " raisePyAutoGUIImageNotFoundException run screenshot useImageNotFoundException Window",
}
"""Functions from other modules, by module."""


class PyAutoGUIException(Exception):
    """The desktop rejected the input."""


class FailSafeException(PyAutoGUIException):
    """With ``FAILSAFE`` the pointer is at one of ``FAILSAFE_POINTS``."""


class ImageNotFoundException(PyAutoGUIException):
    """The screen does not have the image."""


Point = namedtuple("Point", ("x", "y"))
Size = namedtuple("Size", ("width", "height"))


class _Desktop:
    """Connection to the server, which the first call opens."""

    def __init__(self) -> None:
        self.stream: Any = None
        self.has_pressed = self.has_begun = False

    def send(self, *events: Sequence[Any]) -> "dict[str, Any]":
        """Perform events of the program's one action; its first press is no second click of an earlier one."""
        request = {"events": events, "apart": not self.has_pressed, "begins": not self.has_begun}
        self.has_begun = True
        self.has_pressed |= any(kind == "press" for kind, *_ in events)
        if self.stream is None:
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(ADDRESS)
            self.stream = connection.makefile("rwb")
        self.stream.write(json.dumps(request).encode() + b"\n")
        self.stream.flush()
        line = self.stream.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "the desktop has ended"}
        if "error" in answer:
            raise PyAutoGUIException(answer["error"])
        return answer


_desktop = _Desktop()


def position(x: "int | None" = None, y: "int | None" = None) -> Point:
    """Return the position of the pointer."""
    pointer = _desktop.send()["position"]
    return Point(pointer[0] if x is None else int(x), pointer[1] if y is None else int(y))


def size() -> Size:
    """Return the screen's size."""
    return Size(*_desktop.send()["size"])


resolution = size


def onScreen(x: Any, y: "int | None" = None) -> bool:
    """Return whether a position is on the screen."""
    (left, top), (width, height) = _place(x, y), size()
    return bool(0 <= left < width and 0 <= top < height)


def isValidKey(key: str) -> bool:
    """Return whether the keyboard has a key."""
    return _key_name(key) is not None


def failSafeCheck() -> None:
    """With ``FAILSAFE``, raise FailSafeException if the pointer is at one of ``FAILSAFE_POINTS``."""
    if FAILSAFE and tuple(position()) in FAILSAFE_POINTS:
        raise FailSafeException("the pointer is at a fail-safe point: pyautogui.FAILSAFE = False allows that")


def _borrowed(module: str, name: str) -> Callable[..., Any]:
    """Return a function of another module, which the first call imports."""

    def call(*given: Any, **named: Any) -> Any:
        lender: Any = importlib.import_module(module)
        if module == "pyscreeze":
            lender.screenshot = globals()["screenshot"]
        try:
            return getattr(lender, name)(*given, **named)
        except getattr(lender, "ImageNotFoundException", ()) as error:
            raise ImageNotFoundException(*error.args) from error

    call.__name__ = name
    return call


globals().update({name: _borrowed(module, name) for module, names in BORROWED.items() for name in names.split()})


def sleep(seconds: float) -> None:
    """Sleep."""
    time.sleep(seconds)


def moveTo(x: Any = None, y: Any = None, duration: float = 0.0, tween: Any = None, *_: Any, **__: Any) -> None:
    """Move the pointer."""
    place = _place(x, y)
    _move_gradually(place, duration, tween)
    _rest()


def moveRel(xOffset: int = 0, yOffset: int = 0, duration: float = 0.0, tween: Any = None, *_: Any, **__: Any) -> None:
    """Move the pointer by an offset."""
    here = position()
    moveTo(here.x + int(xOffset), here.y + int(yOffset), duration, tween)


move = moveRel


def click(
    x: Any = None,
    y: Any = None,
    clicks: int = 1,
    interval: float = 0.0,
    button: Any = PRIMARY,
    duration: float = 0.0,
    tween: Any = None,
    *_: Any,
    **__: Any,
) -> None:
    """Click a button ``clicks`` times."""
    _move_if_given(x, y, duration, tween)
    pressed = [["press", _button_name(button)], ["release", _button_name(button)]]
    if interval <= 0:
        _desktop.send(*(pressed * clicks))
    for _number in range(clicks if interval > 0 else 0):
        _desktop.send(*pressed)
        time.sleep(interval)
    _rest()


def _click_function(clicks: int, only: str = "") -> Callable[..., None]:
    """Return a function that clicks a chosen button, or the ``only`` one, which it does not take."""
    names = ("duration",) if only else ("button", "duration")

    def click_so(x: Any = None, y: Any = None, interval: float = 0.0, *given: Any, **named: Any) -> None:
        chosen = {"button": only or LEFT, **dict(zip(names, given, strict=False)), **named}
        click(x, y, clicks, interval, chosen["button"], chosen.get("duration", 0.0), chosen.get("tween"))

    return click_so


leftClick, rightClick, middleClick = (_click_function(1, button) for button in (LEFT, RIGHT, MIDDLE))
doubleClick, tripleClick = _click_function(2), _click_function(3)


def _button_function(kind: str) -> Callable[..., None]:
    """Return a function that presses or releases a button."""

    def act(x: Any = None, y: Any = None, button: Any = PRIMARY, duration: float = 0.0, *_: Any, **__: Any) -> None:
        _move_if_given(x, y, duration)
        _desktop.send([kind, _button_name(button)])
        _rest()

    return act


mouseDown, mouseUp = _button_function("press"), _button_function("release")


def dragTo(
    x: Any = None,
    y: Any = None,
    duration: float = 0.0,
    tween: Any = None,
    button: Any = PRIMARY,
    logScreenshot: Any = None,
    _pause: Any = None,
    mouseDownUp: bool = True,
    **_: Any,
) -> None:
    """Move the pointer with a button held."""
    place = _place(x, y)
    if mouseDownUp:
        _desktop.send(["press", _button_name(button)])
    _move_gradually(place, max(duration, MINIMUM_DURATION), tween)
    if mouseDownUp:
        _desktop.send(["release", _button_name(button)])
    _rest()


def dragRel(xOffset: int = 0, yOffset: int = 0, duration: float = 0.0, *further: Any, **named: Any) -> None:
    """Move the pointer by an offset with a button held."""
    here = position()
    dragTo(here.x + int(xOffset), here.y + int(yOffset), duration, *further, **named)


drag = dragRel


def _wheel_function(positive: str, negative: str) -> Callable[..., None]:
    """Return a function that turns the wheel."""

    def turn(clicks: float, x: Any = None, y: Any = None, *_: Any, **__: Any) -> None:
        _move_if_given(x, y)
        if notches := min(abs(int(clicks)), NOTCH_LIMIT):
            _desktop.send(["scroll", positive if clicks > 0 else negative, notches])
        _rest()

    return turn


scroll = vscroll = _wheel_function("up", "down")
hscroll = _wheel_function("right", "left")


def _key_function(kind: str) -> Callable[..., None]:
    """Return a function that presses or releases a key."""

    def act(key: str, *_: Any, **__: Any) -> None:
        if (name := _key_name(key)) is not None:
            _desktop.send([kind, name])
        _rest()

    return act


keyDown, keyUp = _key_function("down"), _key_function("up")


def press(keys: Any, presses: int = 1, interval: float = 0.0, *_: Any, **__: Any) -> None:
    """Press keys one after the other, ``presses`` times."""
    for _number in range(int(presses)):
        for key in [keys] if isinstance(keys, str) else keys:
            _press_key(key)
            time.sleep(interval)
    _rest()


@contextlib.contextmanager
def hold(keys: Any, *_: Any, **__: Any) -> Iterator[None]:
    """Hold keys within the block."""
    names = [keys] if isinstance(keys, str) else list(keys)
    for key in names:
        keyDown(key)
    try:
        yield
    finally:
        for key in reversed(names):
            keyUp(key)


def hotkey(*keys: Any, interval: float = 0.0, **_: Any) -> None:
    """Press keys together, in order, and release them."""
    names = list(keys[0]) if len(keys) == 1 and not isinstance(keys[0], str) else list(keys)
    known = [name for key in names if (name := _key_name(key)) is not None]
    for key in known:
        _desktop.send(["down", key])
        time.sleep(interval)
    for key in reversed(known):
        _desktop.send(["up", key])
        time.sleep(interval)
    _rest()


def typewrite(message: Any, interval: float = 0.0, *_: Any, **__: Any) -> None:
    """Type a text, or press the keys of a list."""
    if not isinstance(message, str):
        press(message, interval=interval)
    elif interval <= 0 and message:
        _desktop.send(["text", message.replace("\r", "\n")])
    else:
        for character in message:
            _desktop.send(["text", character.replace("\r", "\n")])
            time.sleep(interval)
    _rest()


write = typewrite
shortcut = hotkey


def _place(x: Any, y: Any) -> Point:
    """Return a position that is given by numbers, a pair, a box, or an image file, which is found on the screen."""
    if isinstance(x, str):
        x = globals()["locateCenterOnScreen"](x)
    if isinstance(x, Sequence):
        x, y = x if len(x) == 2 else (x[0] + x[2] // 2, x[1] + x[3] // 2)
    return position(x, y)


def _move_if_given(x: Any, y: Any, duration: float = 0.0, tween: Any = None) -> None:
    if x is not None or y is not None:
        _move_gradually(_place(x, y), duration, tween)


def _move_gradually(to: Point, duration: float, tween: Any = None) -> None:
    """Move to a position; with a duration through intermediate positions, which a drag needs.

    ``tween`` maps the part of the time, 0 to 1, to the part of the way.
    """
    if duration > MINIMUM_DURATION / 2:
        here, steps = position(), max(2, int(duration * 50))
        for step in range(1, steps):
            part = tween(step / steps) if tween else step / steps
            _desktop.send(["move", int(here.x + (to.x - here.x) * part), int(here.y + (to.y - here.y) * part)])
            time.sleep(duration / steps)
    _desktop.send(["move", to.x, to.y])


def _button_name(button: Any) -> str:
    return BUTTONS.get(button, button)


def _key_name(key: str) -> "str | None":
    """Return the server's name of a key, None for an unknown key, which pyautogui ignores too."""
    return KEYS.get(key.lower(), key if len(key) == 1 else None)


def _press_key(key: str) -> None:
    if key in "\n\r\t" or len(key) > 1:
        if (name := _key_name(key)) is not None:
            _desktop.send(["down", name], ["up", name])
    else:
        _desktop.send(["text", key])


def _rest() -> None:
    failSafeCheck()
    time.sleep(PAUSE)
