"""The schedule of a soak is reproducible, and growth past a bound is found."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faults import scene
from tests.faults.soak import GAP_S, LAG, Planned, Sample, Usage, passed, schedule

NAMES = [fault.name for fault in scene.every_fault(1.0)]


def test_no_two_faults_have_one_name():
    assert len(set(NAMES)) == len(NAMES) > 30


@given(st.integers(0, 2**31), st.floats(1, 40_000))
def test_a_schedule_has_each_fault_once_before_any_twice(seed, seconds):
    planned = schedule(seed, seconds, NAMES)
    assert planned == schedule(seed, seconds, NAMES)
    assert sum(one.quiet_s + 30 for one in planned[:-1]) < seconds <= sum(one.quiet_s + 30 for one in planned) + 1e-6
    assert all(GAP_S[0] <= one.quiet_s <= GAP_S[1] for one in planned)
    for begin in range(0, len(planned), len(NAMES)):
        turn = [one.fault for one in planned[begin : begin + len(NAMES)]]
        assert len(set(turn)) == len(turn)


def test_other_seeds_give_other_schedules_and_a_written_one_is_read_back():
    one, other = (schedule(seed, 3600, NAMES) for seed in (1, 2))
    assert one != other
    assert msgspec.json.decode(msgspec.json.encode(one), type=list[Planned]) == one


FIRST = Sample(0.0, {"env": Usage(100.0, 50, 10)}, {"env": 5}, 1.0)


@pytest.mark.parametrize(
    ("later", "what"),
    [
        (Sample(9.0, {"env": Usage(100.0, 50, 10)}, {"env": 5}, 1.0), ""),
        (Sample(9.0, {"env": Usage(400.0, 50, 10)}, {"env": 5}, 1.0), "env memory_mb"),
        (Sample(9.0, {"env": Usage(100.0, 500, 10)}, {"env": 5}, 1.0), "env handles"),
        (Sample(9.0, {"env": Usage(100.0, 50, 100)}, {"env": 5}, 1.0), "env threads"),
        (Sample(9.0, {"env": Usage(100.0, 50, 10)}, {"env": LAG + 1}, 1.0), "lag of env"),
        (Sample(9.0, {"env": Usage(100.0, 50, 10)}, {}, 1.0), "lag is not known"),
        (Sample(9.0, {"env": Usage(100.0, 50, 10)}, {"env": 5}, 900.0), "the run's folder"),
        (Sample(9.0, {}, {"env": 5}, 1.0), "env is missing"),
    ],
)
def test_growth_past_a_bound_and_missing_measurements_are_found(later, what):
    found = [one.what for one in passed([FIRST, later], 100)]
    assert len(found) == bool(what)
    assert all(one.startswith(what) for one in found)
