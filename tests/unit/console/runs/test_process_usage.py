"""CPU time by process, from samples of what each process tree has used so far."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.runs.process_usage import ProcessUsage, cpu_seconds


def samples(*cpu_s: float, process: str = "env-0", pid: int = 1) -> list[ProcessUsage]:
    return [ProcessUsage(1000 * at, process, seconds, 100.0, pid=pid) for at, seconds in enumerate(cpu_s)]


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (samples(1.0, 3.0, 4.5), 3.5),
        (samples(1.0, 3.0, 1.5, 4.0), 3.0),  # a browser ended while the sample was taken; then its parent has its times
        (samples(5.0, 8.0, 0.0), 3.0),  # the last sample is of a process that has just ended
        (samples(7.0), 0.0),
        ([*samples(5.0, 8.0, 0.0), *samples(0.0, 2.0, pid=2)], 5.0),  # it was started again
    ],
)
def test_cpu_time_remains_when_a_process_ends_and_is_summed(usage: list[ProcessUsage], expected: float):
    assert cpu_seconds(usage, 0, 10_000) == {"env-0": expected}


def test_samples_outside_of_the_time_and_of_others_do_not_count():
    usage = [*samples(1.0, 2.0, 4.0, 9.0), *samples(0.0, 0.5, 0.6, 0.7, process="monitor-0")]
    assert cpu_seconds(usage, 1000, 2000) == {"env-0": 2.0, "monitor-0": 0.1}
    assert cpu_seconds(usage, 1000, 2000, of=lambda sample: sample.rss_mb) == {"env-0": 0.0, "monitor-0": 0.0}


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_it_is_never_negative_and_for_one_that_only_grows_its_whole_growth(cpu_s: list[float]):
    assert cpu_seconds(samples(*cpu_s), 0, 10**9)["env-0"] >= 0
    rising = sorted(cpu_s)
    assert cpu_seconds(samples(*rising), 0, 10**9)["env-0"] == pytest.approx(rising[-1] - rising[0], abs=0.06)
