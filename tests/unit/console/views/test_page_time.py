"""A run over time: what the slots do, by the log alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.runs.run_log import ActionTimes, EndHeader, ObservationHeader, OrderHeader, RecordMetadata
from console.runs.run_state import RunState
from console.runs.time_slices import SLICE_MS
from console.views.page.time_curves import slice_curves
from tests import events

START = 1_700_000_000_000
SLOTS = 4


def play(state: RunState, number: int, began_ms: int, gaps: list[tuple[int, float]]) -> int:
    """Play an episode whose actions come after ``gaps`` milliseconds; return its end."""
    at_ms, order = began_ms, OrderHeader(f"o{number}", "train", "task")
    for step, (gap_ms, share) in enumerate([(0, 0.0), *gaps]):
        at_ms += gap_ms
        taken = ActionTimes(0.0, 0.0, gap_ms * share, "wait()") if step else None
        end = EndHeader("success", 1.0) if step == len(gaps) else None
        header = ObservationHeader(f"t{number}", order, step, end, "env-0", at_ms, taken)
        state.apply(RecordMetadata("observations", 0, 0, at_ms), header)
    finished = events.trajectory(
        f"t{number}", order_id=f"o{number}", steps=len(gaps), started_ms=began_ms, finished_ms=at_ms
    )
    state.apply(RecordMetadata("trajectories", 0, 0, at_ms), finished)
    return at_ms


def test_a_slot_acts_for_its_actions_and_a_repeat_counts_once():
    state = RunState()
    end = play(state, 0, START - START % SLICE_MS, [(SLICE_MS, 0.25), (SLICE_MS, 0.75)])
    found = slice_curves(state, end, SLOTS)
    assert found.acting_slots[:2] == [pytest.approx(0.25, abs=0.01), pytest.approx(0.75, abs=0.01)]
    assert found.busy_slots[:2] == [pytest.approx(1.0), pytest.approx(1.0)]
    once, twice = RunState(), RunState()
    play(once, 0, START, [(1000, 0.5), (1000, 0.5)])
    for _ in range(2):
        play(twice, 0, START, [(1000, 0.5), (1000, 0.5)])
    assert slice_curves(once, START + 2000, SLOTS).acting_slots == slice_curves(twice, START + 2000, SLOTS).acting_slots


@given(st.lists(st.lists(st.tuples(st.integers(1, 9000), st.floats(0, 1)), min_size=1, max_size=5), max_size=SLOTS))
def test_acting_slots_are_busy_and_busy_slots_are_at_most_all(episodes):
    state, last = RunState(), START
    for number, gaps in enumerate(episodes):
        last = max(last, play(state, number, START, gaps))
    found = slice_curves(state, last, SLOTS)
    for acting, busy in zip(found.acting_slots, found.busy_slots, strict=True):
        assert 0 <= acting <= busy <= SLOTS
    acted_ms = sum(found.acting_slots) * found.width_ms
    assert acted_ms == pytest.approx(sum(round(gap * share) for gaps in episodes for gap, share in gaps), abs=20)
