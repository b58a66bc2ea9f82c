"""How long a request has waited, without its host's clock: never more than it did, and nearly as much."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import events
from tests.unit.clockwork import SetClock
from workers.rollout import request_server
from workers.rollout.request_server import LateRequests, RequestAges, budget_s


@pytest.mark.parametrize("off_ms", [-600_000, 0, 600_000])
def test_a_budget_is_what_its_host_waits_whatever_that_hosts_clock_says(off_ms):
    sent_ms = 1_700_000_000_000 + off_ms
    assert budget_s(events.action_request(deadline_ms=sent_ms + 20_000), SimpleNamespace(timestamp=sent_ms)) == 20.0


def test_what_was_seen_waiting_is_as_old_as_the_first_look_else_new():
    clock = SetClock(0.0)
    ages = RequestAges(clock)
    for clock.now_s, end in ((1.0, 3), (2.0, 3), (3.0, 6)):
        ages.note_ends({0: end})
    clock.now_s = 10.0
    assert [ages.age_s(0, offset) for offset in (0, 2, 3, 5, 6)] == [9.0, 9.0, 7.0, 7.0, 0.0]
    ages = RequestAges(SetClock(0.0))
    assert ages.age_s(0, 0) == 0.0
    ages.note_ends({0: 5})
    assert ages.age_s(0, 5) == 0.0
    assert ages.age_s(1, 0) == 0.0


def test_a_partition_that_went_away_begins_anew():
    clock = SetClock(0.0)
    ages = RequestAges(clock)
    ages.note_ends({0: 5, 1: 5})
    clock.now_s = 10.0
    ages.keep([1])
    assert (ages.age_s(0, 0), ages.age_s(1, 0)) == (0.0, 10.0)


@given(st.data())
def test_request_ages_are_exact_within_the_poll_interval(data):
    clock, written = SetClock(0.0), []
    ages = RequestAges(clock)
    looked_s, taken, gap_s = 0.0, 0, 1.0
    for _ in range(data.draw(st.integers(1, 60))):
        clock.now_s += data.draw(st.floats(0.01, gap_s))
        match data.draw(st.sampled_from(["write", "take"])):
            case "write":
                written.append(clock.now_s)
            case "take" if taken < len(written):
                true_s = clock.now_s - written[taken]
                assert true_s - 2 * gap_s <= ages.age_s(0, taken) <= true_s
                taken += 1
        if clock.now_s - looked_s >= gap_s:
            looked_s = clock.now_s
            ages.note_ends({0: len(written)})


def test_dropped_requests_are_logged_at_once_and_then_together(monkeypatch):
    lines = []
    monkeypatch.setattr(request_server, "log", SimpleNamespace(warning=lambda event, **fields: lines.append(fields)))
    late = LateRequests()
    for _ in range(100):
        late.add(events.action_request(deadline_ms=0), 25.0, 20.0)
    assert [(line["requests"], line["waited_s"], line["budget_s"]) for line in lines] == [(1, 25.0, 20.0)]
    assert late.count == 99
    monkeypatch.setattr(request_server, "REPORT_INTERVAL_S", 0.0)
    late._quiet = request_server.Deadline(0.0)
    late.report()
    assert [line["requests"] for line in lines] == [1, 99]
    late.report()
    assert len(lines) == 2, "nothing new, nothing said"
