"""Times between strikes of keys, by what the applications have handled and not by the clock alone.

An application that gets no processor handles a key late. Two strikes of one key that were apart may then come together,
and a key that was lent to another character means that one.
"""

import time
from collections.abc import Callable

KEY_S = 0.005
"""Pause between two keys of a text."""
SAME_KEY_S = 0.12
"""Pause before the same key again: a calculator shows a key as pressed for that time, and ignores it meanwhile."""
LOOK_INTERVAL_S, COUNTED_S = 0.01, 0.1
"""Time between two looks, and how much of it counts at most: a machine that stands still does not compute."""
STILL_LOOKS = 3
"""Consecutive looks at which no application computes, after which it has handled all keys."""
REST_S = 5.0
"""Time limit of an action's waits for applications; those that always compute get their keys by the clock."""

REPEATS_S = 10.0
"""Time limit of an action's pauses before named keys and shortcuts, which programs press a hundred times."""


class Strikes:
    """The strikes of keys on one display; ``busy`` says whether an application computes or waits for a processor."""

    def __init__(
        self,
        busy: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.busy = busy
        self.clock = clock
        self.sleep = sleep
        self.struck_s: dict[int, float] = {}
        """Time of the last strike of each key."""
        self.last_s = 0.0
        """Time of the last strike of any key."""
        self.mapped_s = 0.0
        """Time of the last change of the keyboard mapping."""
        self.handled_s = 0.0
        """Time at which all earlier strikes and changes of the mapping were handled."""
        self.left_s = REST_S
        self.repeats_left_s = REPEATS_S

    def begin_action(self) -> None:
        """Permit the waits of another action."""
        self.left_s, self.repeats_left_s = REST_S, REPEATS_S

    def note(self, code: int) -> None:
        """Note that a key was struck."""
        self.last_s = self.struck_s[code] = self.clock()

    def note_mapping(self) -> None:
        """Note that the keyboard mapping was changed, upon which a window manager grabs its keys again."""
        self.last_s = self.mapped_s = self.clock()

    def note_rest(self, since_s: float) -> None:
        """Note that no application has computed since a time."""
        self.handled_s = max(self.handled_s, since_s)

    def wait_before(self, code: int) -> None:
        """Wait until the applications take a key as a new one."""
        struck_s = self.struck_s.get(code)
        if struck_s is None:
            self.sleep(KEY_S)
            return
        if self.handled_s <= struck_s:
            self.wait_until_handled()
        self.sleep(max(KEY_S, max(self.handled_s, struck_s) + SAME_KEY_S - self.clock()))

    def wait_before_repeat(self, code: int) -> None:
        """Do the same before a named key or a shortcut; an action's many repetitions are bounded in time."""
        began_s = self.clock()
        if self.repeats_left_s > 0:
            self.wait_before(code)
        else:
            self.sleep(KEY_S)
        self.repeats_left_s -= self.clock() - began_s

    def wait_before_shortcut(self) -> None:
        """Wait until the window manager has grabbed its keys again, if the keyboard mapping was changed."""
        if self.handled_s < self.mapped_s:
            self.wait_until_handled()

    def wait_until_handled(self) -> None:
        """Wait until the applications have handled all keys, at most as long as the action may still wait."""
        looks, still_s, looked_s = 0, 0.0, self.clock()
        while self.handled_s <= self.last_s and self.left_s > 0:
            self.sleep(LOOK_INTERVAL_S)
            before_s, looked_s = looked_s, self.clock()
            self.left_s -= min(looked_s - before_s, COUNTED_S)
            looks = 0 if self.busy() else looks + 1
            if looks == 1:
                still_s = self.clock()
            if looks == STILL_LOOKS:
                self.note_rest(still_s)
