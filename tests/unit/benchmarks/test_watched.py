"""The cost of a viewer, from blocks of one run: what counts of a block, the pairs, and blocks that prove nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.watched import SETTLED_S, Block, MeasuredBlock, measured, summary
from dart_streams.console.runs.process_usage import ProcessUsage
from dart_streams.console.runs.time_slices import SLICE_MS, TimeSlice

BLOCK_MS = 180_000


def block(watched: bool, rate: float, cpu: float = 0.0) -> MeasuredBlock:
    return MeasuredBlock(watched=watched, seconds=100.0, steps_per_s=rate, page_cpu=cpu)


def slices(rates: list[float]) -> dict[int, TimeSlice]:
    """Slices of a run whose blocks have these steps a second, but thousands in what does not count."""
    found = {}
    for number in range(len(rates) * BLOCK_MS // SLICE_MS):
        place, within = divmod(number * SLICE_MS, BLOCK_MS)
        steps = rates[place] * SLICE_MS / 1000 if within >= SETTLED_S * 1000 else 9999
        found[number] = TimeSlice(steps=int(steps))
    return found


def test_of_a_block_what_comes_before_it_has_settled_does_not_count():
    made = slices([20.0, 18.0])
    usage = [ProcessUsage(n * 1000, "ui", max(0, n - 185) * 0.1, 50.0) for n in range(360)]
    alone = measured(Block(False, 0, BLOCK_MS), made, usage)
    watched = measured(Block(True, BLOCK_MS, 2 * BLOCK_MS, 100, 50), made, usage)
    assert (alone.steps_per_s, watched.steps_per_s) == (20.0, 18.0)
    assert alone.page_cpu == 0.0
    assert watched.page_cpu == pytest.approx(0.1, abs=0.01)
    assert summary([alone, watched])["cost"] == pytest.approx(0.1)


def test_a_block_in_which_nothing_was_sent_proves_nothing_nor_does_a_short_one():
    with pytest.raises(ValueError, match="nothing was watched"):
        measured(Block(True, 0, BLOCK_MS, 100, 0), slices([20.0]), [])
    with pytest.raises(ValueError, match="too short"):
        measured(Block(False, 0, int(SETTLED_S * 1000)), slices([20.0]), [])


def test_a_run_that_speeds_up_by_itself_has_a_cost_of_nothing():
    rates = [20.0 * 1.02**n for n in range(9)]
    found = summary([block(n % 2 == 1, rate) for n, rate in enumerate(rates)])
    assert found["pairs"] == 8
    assert found["cost_low"] < 0 < found["cost_high"]
    assert abs(found["cost"]) < 0.001


def test_a_cost_is_seen_and_one_pair_has_no_interval():
    found = summary([block(n % 2 == 1, 19.0 if n % 2 else 20.0 + 0.01 * n, 0.02) for n in range(7)])
    assert 0 < found["cost_low"] < 0.0505 < found["cost_high"]
    one = summary([block(False, 20.0), block(True, 19.0)])
    assert (one["cost"], one["cost_low"]) == (pytest.approx(0.05), None)
    assert summary([])["cost"] is None


@given(st.lists(st.floats(1, 100), min_size=3, max_size=12), st.floats(0.5, 2.0))
def test_the_cost_does_not_depend_on_how_fast_the_machine_is(rates: list[float], factor: float):
    made = [block(n % 2 == 1, rate) for n, rate in enumerate(rates)]
    faster = [block(n % 2 == 1, rate * factor) for n, rate in enumerate(rates)]
    assert summary(made)["cost"] == pytest.approx(summary(faster)["cost"], abs=1e-9)
