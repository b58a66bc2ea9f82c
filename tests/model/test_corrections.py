"""Corrections of trainer against engine against literal values: each source's rule worked out by hand."""

import math
from typing import Any

import pytest
import torch

from dart_streams.config import parse
from dart_streams.errors import ConfigError
from trainer.corrections import CORRECTIONS, Correction, importance_weights


def rows(*values: tuple[float, ...]) -> torch.Tensor:
    return torch.tensor(values)


def corrected(ratios: torch.Tensor, mask: torch.Tensor | None = None, **trainer: Any) -> Correction:
    """Return the correction of tokens with these ratios of trainer to engine."""
    counted = torch.ones_like(ratios) if mask is None else mask
    return importance_weights(ratios.log(), torch.zeros_like(ratios), counted, parse({"trainer": trainer}).trainer)


@pytest.mark.parametrize(("cap", "weight"), [(2.0, 2.0), (5.0, math.e)])
def test_a_larger_cap_lets_larger_weights_through(cap, weight):
    assert corrected(rows((math.e,)), truncate={"cap": cap}).weight_BA.item() == pytest.approx(weight, rel=1e-6)


@pytest.mark.parametrize(("ratio", "weight"), [(0.4, 0.0), (0.5001, 0.5001), (1.0, 1.0), (4.9, 4.9), (5.1, 0.0)])
def test_icepop_keeps_the_plain_ratio_within_its_bounds(ratio, weight):
    """Ring-1T, arXiv 2510.18855: M(k) = k if 0.5 <= k <= 5, else 0."""
    assert corrected(rows((ratio,)), correction="mask").weight_BA.item() == pytest.approx(weight, rel=1e-5)


@pytest.mark.parametrize(
    ("correction", "weights", "altered"),
    [
        ("truncate", [1.0, 0.3679, 0.0183, 1.0], [True, False, False, False]),
        ("mask", [2.7183, 0.0, 0.0, 1.0], [False, True, True, False]),
        ("geometric_mask", [0.0, 0.0, 0.0, 0.0], [True, True, True, True]),
        ("sequence_mask", [0.0, 0.0, 0.0, 0.0], [True, True, True, True]),
        ("none", [1.0, 1.0, 1.0, 1.0], [False, False, False, False]),
    ],
)
def test_the_correction_of_engine_against_trainer_is_configured(correction, weights, altered):
    settings = parse({"trainer": {"correction": correction}}).trainer
    old = rows((-1.0, -2.0, -5.0, -1.0)).requires_grad_()
    weight, changed = importance_weights(old, rows((-2.0, -1.0, -1.0, -1.0)), torch.ones(1, 4), settings)
    assert not weight.requires_grad
    assert weight[0].tolist() == pytest.approx(weights, abs=1e-4)
    assert changed[0].bool().tolist() == altered


def test_a_geometric_mask_looks_at_the_mean_ratio_and_gives_no_weights():
    """Means: sqrt(2 * 0.5) = 1, sqrt(1.0404) = 1.02, sqrt(0.9604) = 0.98, 1.005 whatever the length."""
    ratios = rows((2.0, 0.5), (1.02, 1.02), (0.98, 0.98), (1.005, 1.005))
    weight, altered = corrected(ratios, correction="geometric_mask")
    assert weight.tolist() == [[1.0, 1.0], [0.0, 0.0], [0.0, 0.0], [1.0, 1.0]]
    assert altered.tolist() == [[False] * 2, [True] * 2, [True] * 2, [False] * 2]
    wide = corrected(ratios, correction="geometric_mask", geometric_mask={"low": 0.97, "high": 1.015})
    assert wide.weight_BA[:, 0].tolist() == [1.0, 0.0, 1.0, 1.0]


def test_a_sequence_mask_weighs_by_the_product_of_ratios_within_its_bounds():
    """Products: 2 * 0.75 = 1.5, 1.5 * 1.5 = 2.25, 0.6 * 0.9 = 0.54, 0.7 * 0.7 = 0.49."""
    ratios = rows((2.0, 0.75), (1.5, 1.5), (0.6, 0.9), (0.7, 0.7))
    weight, altered = corrected(ratios, correction="sequence_mask")
    assert weight[:, 0].tolist() == pytest.approx([1.5, 0.0, 0.54, 0.0])
    assert weight[:, 0].tolist() == weight[:, 1].tolist()
    assert altered[:, 0].tolist() == [False, True, False, True]
    above_only = corrected(ratios, correction="sequence_mask", sequence_mask={"low": 0.0})
    assert above_only.weight_BA[:, 0].tolist() == pytest.approx([1.5, 0.0, 0.54, 0.49])


def test_a_product_beyond_float32_is_masked_and_not_infinite():
    logp = torch.full((1, 4), 40.0)
    settings = parse({"trainer": {"correction": "sequence_mask"}}).trainer
    assert importance_weights(logp, -logp, torch.ones(1, 4), settings).weight_BA.tolist() == [[0.0] * 4]


@pytest.mark.parametrize("name", list(CORRECTIONS))
@pytest.mark.parametrize("beside", [math.nan, math.inf, -math.inf, 3.0])
def test_padding_changes_no_weight_of_the_tokens_that_count(name, beside):
    log_ratio, mask = rows((0.004, -0.002, beside)), torch.tensor([[1, 1, 0]])
    settings = parse({"trainer": {"correction": name}}).trainer
    whole, alone = (CORRECTIONS[name](log_ratio[:, :end], mask[:, :end], settings) for end in (3, 2))
    assert whole.weight_BA[:, :2].tolist() == alone.weight_BA.tolist()
    assert whole.altered_BA[:, :2].tolist() == alone.altered_BA.tolist()


@pytest.mark.parametrize(
    "wrong", [{"mask": {"low": 1.5}}, {"geometric_mask": {"high": 0.9}}, {"sequence_mask": {"low": -1.0}}]
)
def test_bounds_that_leave_out_equal_policies_are_refused(wrong):
    with pytest.raises(ConfigError, match="trainer"):
        parse({"trainer": wrong})
