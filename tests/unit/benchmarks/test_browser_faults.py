"""When episodes go on as before a fault."""

from benchmarks.browser_faults import back_s

RATE = 10.0


def test_episodes_that_go_on_are_back_at_once():
    assert back_s([n / RATE for n in range(200)], 5.0, RATE) == 0.0


def test_a_pause_ends_where_the_rate_is_as_before():
    ended = [n / RATE for n in range(50)] + [8.0 + n / RATE for n in range(100)]
    assert back_s(ended, 5.0, RATE) == 3.0


def test_a_rate_that_stays_low_is_not_back():
    assert back_s([n / (RATE / 2) for n in range(200)], 5.0, RATE) is None
