"""Ratios to a baseline, with the figures of arXiv 2509.23866: with its decoupling, and without."""

import pytest

from benchmarks.utilization import ratio_to


@pytest.mark.parametrize(
    ("dart", "baseline", "expected"),
    [
        pytest.param(43.6, 22.6, 1.93, id="actions a minute"),
        pytest.param(67.7, 12.2, 5.55, id="environments' utilisation"),
        pytest.param(46.7, 29.6, 1.58, id="rollout GPUs' utilisation"),
    ],
)
def test_the_paper_s_ratios(dart: float, baseline: float, expected: float):
    assert ratio_to(dart, baseline) == expected


@pytest.mark.parametrize("baseline", [0.0, -1.0, float("nan")])
def test_nothing_is_no_baseline(baseline: float):
    with pytest.raises(ValueError, match="baseline"):
        ratio_to(1.0, baseline)
