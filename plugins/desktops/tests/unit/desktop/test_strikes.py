"""Strikes of keys beside applications that handle them at once, late, or never."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from dart_desktops.desktop.guest import keyboard, strikes

KEY, OTHER = 10, 11
LOOK_S = strikes.STILL_LOOKS * strikes.LOOK_INTERVAL_S


class Application:
    """An application in virtual time, which computes until a time."""

    def __init__(self, busy_until: Callable[[], float] = lambda: 0.0) -> None:
        self.now_s = 100.0
        self.strikes = strikes.Strikes(lambda: self.now_s < busy_until(), lambda: self.now_s, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now_s += max(0.0, seconds)

    def strike(self, code: int) -> float:
        """Strike a key; return when."""
        self.strikes.wait_before(code)
        self.strikes.note(code)
        return self.now_s


def test_different_keys_do_not_wait_for_the_application():
    application = Application(lambda: 1000.0)
    assert [application.strike(code) for code in (KEY, OTHER)] == pytest.approx(
        [100 + strikes.KEY_S, 100 + 2 * strikes.KEY_S]
    )


def test_the_same_key_comes_after_its_pause():
    application = Application()
    first = application.strike(KEY)
    assert strikes.SAME_KEY_S <= application.strike(KEY) - first <= strikes.SAME_KEY_S + LOOK_S


def test_the_pause_begins_when_a_late_application_has_handled_the_key():
    application = Application(lambda: 102.0)
    application.strike(KEY)
    application.strike(OTHER)
    assert application.strike(KEY) == pytest.approx(102.0 + strikes.SAME_KEY_S, abs=2 * strikes.LOOK_INTERVAL_S)


def test_a_moment_between_two_computations_is_no_rest():
    application = Application()
    answers = iter([False, False, True, False, False, True])
    application.strikes.busy = lambda: next(answers, False)
    first = application.strike(KEY)
    assert application.strike(KEY) == pytest.approx(first + 7 * strikes.LOOK_INTERVAL_S + strikes.SAME_KEY_S)


def test_an_application_that_always_computes_costs_an_action_its_limit():
    application = Application(lambda: 1000.0)
    application.strikes.begin_action()
    first = application.strike(KEY)
    for _ in range(10):
        last = application.strike(KEY)
    assert last - first == pytest.approx(strikes.REST_S + 10 * strikes.SAME_KEY_S, abs=0.2)
    application.strikes.begin_action()
    assert application.strike(KEY) - last == pytest.approx(strikes.REST_S, abs=0.2)


def test_a_machine_that_stands_still_costs_an_action_no_pause():
    application = Application(lambda: 110.0)
    application.strike(KEY)
    pauses = iter([9.0])
    application.strikes.sleep = lambda seconds: application.sleep(next(pauses, seconds))
    assert application.strike(KEY) == pytest.approx(110.0 + strikes.SAME_KEY_S, abs=2 * strikes.LOOK_INTERVAL_S)


def test_a_named_key_is_paced_until_an_action_has_paused_enough():
    application = Application()
    struck = []
    for _ in range(1000):
        application.strikes.wait_before_repeat(KEY)
        application.strikes.note(KEY)
        struck.append(application.now_s)
    assert all(
        strikes.SAME_KEY_S <= later - earlier <= strikes.SAME_KEY_S + LOOK_S for earlier, later in pairwise(struck[:50])
    )
    assert struck[-1] - struck[-2] == pytest.approx(strikes.KEY_S)
    assert struck[-1] - struck[0] == pytest.approx(strikes.REPEATS_S + 1000 * strikes.KEY_S, abs=0.5)
    application.strikes.begin_action()
    application.strikes.wait_before_repeat(KEY)
    assert application.now_s - struck[-1] >= strikes.SAME_KEY_S


def test_a_key_of_an_earlier_action_that_came_to_rest_waits_for_nothing():
    application = Application()
    struck = application.strike(KEY)
    application.sleep(1.0)
    application.strikes.note_rest(struck + 0.5)
    application.strikes.busy = lambda: True
    assert application.strike(KEY) == pytest.approx(struck + 1.0 + strikes.KEY_S)


def test_a_code_is_lent_again_only_after_its_keys_were_handled():
    lent: list[tuple[int, float]] = []
    application = Application(lambda: 103.0)
    codes = keyboard.Keymap(
        [[0, 0]], lambda code, keysym: lent.append((keysym, application.now_s)), application.strikes.wait_until_handled
    )
    for character in "äöö":
        assert codes.lend(character) == 1
        code, _ = codes.codes[keyboard.keysym_of(character)]
        application.strike(code)
    assert lent == [(ord("ä"), 100.0), (ord("ö"), pytest.approx(103.0, abs=2 * LOOK_S))]


def test_a_shortcut_waits_until_a_change_of_the_mapping_was_handled():
    application = Application(lambda: 102.0)
    application.strikes.wait_before_shortcut()
    assert application.now_s == 100.0, "nothing was changed"
    application.strikes.note_mapping()
    application.strikes.wait_before_shortcut()
    assert application.now_s == pytest.approx(102.0 + LOOK_S, abs=strikes.LOOK_INTERVAL_S)
    handled_s = application.now_s
    application.strikes.wait_before_shortcut()
    assert application.now_s == handled_s
