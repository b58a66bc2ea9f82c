"""Client of the X server: input by XTEST, drawing by DAMAGE, screens from the memory-mapped framebuffer."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from Xlib import XK, X, display
from Xlib.error import ConnectionClosedError, DisplayError, XError
from Xlib.ext import damage, xtest

from dart_desktops.desktop.guest.framebuffer import Framebuffer
from dart_desktops.desktop.guest.keyboard import FIRST_CODE, Keymap, keysym_of
from dart_desktops.desktop.guest.strikes import Strikes

DISPLAY_ERRORS = (XError, ConnectionClosedError, DisplayError)
"""Exceptions of calls to the X server if it has ended or refuses them; they have no common base class."""
BUTTONS = {"left": 1, "middle": 2, "right": 3}
WHEEL = {"up": 4, "down": 5, "left": 6, "right": 7}
COMMANDING = (XK.XK_Control_L, XK.XK_Control_R, XK.XK_Alt_L, XK.XK_Alt_R, XK.XK_Super_L, XK.XK_Super_R)
"""Modifiers; while one of them is held, other keys type no text."""
DOUBLE_CLICK_S = 0.3
"""Longer than the session's double-click time, so that clicks of two actions are no double click."""
NEAR_CLICK_S = 0.6
"""The same for programs with a time that no setting changes: 0.5 s in Chromium and Tk, near the first click only."""
NEAR_PIXELS = 16
"""Distance beyond which those programs see no double click."""


class InputError(ValueError):
    """The input event is not supported."""


class XDisplay:
    """A connection to the sandbox's X server; ``busy`` says whether an application computes."""

    def __init__(self, number: int, framebuffer: Path, busy: Callable[[], bool]) -> None:
        self.x = display.Display(f":{number}")
        self.root = self.x.screen().root
        self.held_keys: list[int] = []
        self.held_buttons: list[int] = []
        self.shifted_for: set[int] = set()
        self.pressed_at = 0.0
        self.pressed_where = [0, 0]
        self.strikes = Strikes(busy)
        self.frames = Framebuffer(framebuffer)
        self.shift = self.x.keysym_to_keycode(XK.XK_Shift_L)
        self.commanding = {self.x.keysym_to_keycode(keysym) for keysym in COMMANDING}
        self.modifiers = {self.shift, self.x.keysym_to_keycode(XK.XK_Shift_R), *self.commanding}
        count = self.x.display.info.max_keycode - FIRST_CODE + 1
        change = self.x.change_keyboard_mapping  # Not of self: a reference cycle would keep the framebuffer mapped.
        strikes = self.strikes

        def lend(code: int, keysym: int) -> None:
            change(code, [(keysym, keysym)])
            strikes.note_mapping()

        self._use_keyboard()
        rows = self.x.get_keyboard_mapping(FIRST_CODE, count)
        self.keymap = Keymap(rows, lend, strikes.wait_until_handled)
        self.x.damage_query_version()
        self.root.damage_create(damage.DamageReportRawRectangles)
        # Into a corner: an application under the pointer shows tooltips after a while.
        self._move(self.frames.size[0] - 1, self.frames.size[1] - 1)
        self.x.sync()

    def perform(self, events: Sequence[Sequence[Any]], apart: bool = True, begins: bool = True) -> None:
        """Send input events in order; raise InputError for an unknown one.

        With ``apart`` the first press is delayed so that it is no second click of an earlier one. Events that begin no
        action share the time limits of the one before.
        """
        if begins:
            self.strikes.begin_action()
        for number, (kind, *arguments) in enumerate(events):
            perform = getattr(self, f"_{kind}", None) if kind in EVENTS else None
            if perform is None:
                raise InputError(f"no input event {kind!r}")
            if kind == "press" and not any(event[0] == "press" for event in events[:number]):
                self._begin_press(apart)
            perform(*arguments)
        self.x.sync()
        if any(event[0] == "press" for event in events):
            self.pressed_at = time.monotonic()

    def drew(self) -> bool:
        """Return whether anything was drawn since the last call."""
        drew = False
        for _ in range(self.x.pending_events()):
            event = self.x.next_event()
            drew = drew or event.type == self.x.extension_event.DamageNotify
        return drew

    def managed(self) -> bool:
        """Return whether a window manager runs."""
        return (
            self.root.get_full_property(self.x.intern_atom("_NET_SUPPORTING_WM_CHECK"), X.AnyPropertyType) is not None
        )

    def fill(self, color: int) -> None:
        """Fill the background of the screen."""
        self.root.change_attributes(background_pixel=color)
        self.root.clear_area()
        self.x.sync()

    def pointer(self) -> list[int]:
        """Return the position of the pointer."""
        reply = self.root.query_pointer()
        return [reply.root_x, reply.root_y]

    def window_of(self, class_name: str) -> "tuple[int, int] | None":
        """Return the size of the first window of a class, ignoring case, None without one."""
        listed = self.root.get_full_property(self.x.intern_atom("_NET_CLIENT_LIST"), X.AnyPropertyType)
        for number in () if listed is None else listed.value:
            window = self.x.create_resource_object("window", number)
            with suppressed_if_closed():
                if class_name.lower() in {name.lower() for name in window.get_wm_class() or ()}:
                    box = window.get_geometry()
                    return box.width, box.height
        return None

    def shown(self) -> int:
        """Return the number of shown application windows."""
        windows = (child for child in self.root.query_tree().children)
        return sum(self._is_shown(window) for window in windows)

    def close(self) -> None:
        """Close the connection and the framebuffer."""
        self.frames.close()
        self.x.close()

    def _is_shown(self, window: Any) -> bool:
        with suppressed_if_closed():
            attributes = window.get_attributes()
            box = window.get_geometry()
            # Windows of the window manager are tiny, or beside the screen.
            return bool(
                attributes.map_state == X.IsViewable and box.width > 2 and box.height > 2 and box.x > -box.width
            )
        return False

    def _use_keyboard(self) -> None:
        """Strike Shift before any program runs.

        With the first key of another keyboard the server changes the mapping. A window manager then grabs its keys
        again, and a shortcut that comes meanwhile is lost.
        """
        for kind in (X.KeyPress, X.KeyRelease):
            xtest.fake_input(self.x, kind, self.shift)

    def _move(self, x: int, y: int) -> None:
        xtest.fake_input(self.x, X.MotionNotify, x=x, y=y)

    def _begin_press(self, apart: bool) -> None:
        """Note where the first press of some events is; with ``apart`` delay it."""
        (x, y), (old_x, old_y) = self.pointer(), self.pressed_where
        self.pressed_where = [x, y]
        if apart:
            is_near = max(abs(x - old_x), abs(y - old_y)) <= NEAR_PIXELS
            delay_s = NEAR_CLICK_S if is_near else DOUBLE_CLICK_S
            time.sleep(max(0.0, self.pressed_at + delay_s - time.monotonic()))

    def _press(self, button: str) -> None:
        number = button_number(button)
        if number not in self.held_buttons:
            self.held_buttons.append(number)
            xtest.fake_input(self.x, X.ButtonPress, number)

    def _release(self, button: str) -> None:
        number = button_number(button)
        if number in self.held_buttons:
            self.held_buttons.remove(number)
            xtest.fake_input(self.x, X.ButtonRelease, number)

    def _scroll(self, direction: str, notches: int) -> None:
        if direction not in WHEEL:
            raise InputError(f"no direction {direction!r}")
        for _ in range(notches):
            for kind in (X.ButtonPress, X.ButtonRelease):
                xtest.fake_input(self.x, kind, WHEEL[direction])

    def _down(self, name: str) -> None:
        code, shifted = self._code(name)
        self._pace(code)
        means_its_key = name.isalpha() and any(key in self.commanding for key in self.held_keys)
        if shifted and not means_its_key and self.shift not in self.held_keys:
            # As a user does for ctrl and +; a capital letter with Ctrl means its key.
            self.shifted_for.add(code)
            self._hold(self.shift)
        self._hold(code)

    def _up(self, name: str) -> None:
        code, _ = self._code(name)
        self._let_go(code)
        if code in self.shifted_for:
            self.shifted_for.remove(code)
            self._let_go(self.shift)

    def _pace(self, code: int) -> None:
        """Wait before a key is struck again, as within a text; all keys of before are released meanwhile."""
        if code not in self.held_keys and code not in self.modifiers:
            self.x.sync()
            if any(key in self.commanding for key in self.held_keys):
                self.strikes.wait_before_shortcut()
            self.strikes.wait_before_repeat(code)

    def _hold(self, code: int) -> None:
        if code not in self.held_keys:
            self.held_keys.append(code)
            xtest.fake_input(self.x, X.KeyPress, code)
            self.x.sync()
            self.strikes.note(code)

    def _let_go(self, code: int) -> None:
        if code in self.held_keys:
            self.held_keys.remove(code)
            xtest.fake_input(self.x, X.KeyRelease, code)

    def _text(self, text: str) -> None:
        while text:
            count = self.keymap.lend(text)
            if not count:
                raise InputError("more different characters at once than the keyboard has room for")
            for character in text[:count]:
                code, shifted = self.keymap.codes[keysym_of(character)]
                self.strikes.wait_before(code)
                self._strike(code, shifted)
                self.x.sync()
                self.strikes.note(code)
            text = text[count:]

    def _strike(self, code: int, shifted: bool) -> None:
        if shifted and self.shift not in self.held_keys:
            xtest.fake_input(self.x, X.KeyPress, self.shift)
        for kind in (X.KeyPress, X.KeyRelease):
            xtest.fake_input(self.x, kind, code)
        if shifted and self.shift not in self.held_keys:
            xtest.fake_input(self.x, X.KeyRelease, self.shift)

    def _code(self, name: str) -> tuple[int, bool]:
        keysym = keysym_of(name) if len(name) == 1 else XK.string_to_keysym(name)
        if len(name) == 1 and not self.keymap.lend(name):
            raise InputError(f"no key for {name!r}")
        if not keysym or not self.keymap.lend_code(keysym):
            raise InputError(f"no key {name!r}")
        return self.keymap.codes[keysym]


EVENTS = frozenset({"move", "press", "release", "scroll", "down", "up", "text"})


@contextlib.contextmanager
def suppressed_if_closed() -> Iterator[None]:
    """Suppress python-xlib's errors for a window that was closed meanwhile."""
    try:
        yield
    except Exception as error:
        if type(error).__name__ not in {"BadWindow", "BadDrawable"}:
            raise


def button_number(name: str) -> int:
    """Return the number of a mouse button; raise InputError for an unknown name."""
    if name not in BUTTONS:
        raise InputError(f"no mouse button {name!r}")
    return BUTTONS[name]
