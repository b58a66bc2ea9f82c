"""What the trainer's benchmark makes of its steps, worked out by hand."""

from benchmarks.training import StepSample, summarize_steps


def test_the_warm_up_counts_neither_for_the_wait_nor_for_the_slope():
    cold = [StepSample(900.0, 100.0, 100.0 + 50 * number, 8.0) for number in range(4)]
    warm = [StepSample(5.0, 95.0, 300.0 + 0.25 * number, 16.0) for number in range(16)]
    found = summarize_steps([*cold, *warm])
    assert (found["steps"], found["warm_up_steps"]) == (20, 4)
    assert found["data_wait_pct"] == 5.0
    assert found["rss_slope_mb_per_step"] == 0.25
    assert found["rss_mb"] == {"first": 100, "warm": 300, "last": 304}
