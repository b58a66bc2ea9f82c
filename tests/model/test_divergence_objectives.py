"""DPPO (arXiv 2602.04879) by hand: tokens are masked by the shift of their probability, not by their ratio."""

import math

import pytest
import torch

from dart_streams.config import parse
from dart_streams.errors import ConfigError
from trainer.objective import OBJECTIVES, configured_loss


def loss_of(name: str, old: float, new: float, advantage: float) -> tuple[float, float, float]:
    """Return loss, gradient and masked share of a token with these probabilities."""
    logp = torch.tensor([[math.log(new)]]).requires_grad_()
    one = torch.ones(1, 1)
    loss, metrics = OBJECTIVES[name](logp, torch.tensor([[math.log(old)]]), torch.tensor([[advantage]]), one, one)
    loss.backward()
    assert logp.grad is not None
    return loss.item(), logp.grad.item(), metrics["clip_fraction"].item()


@pytest.mark.parametrize(
    ("old", "new", "advantage", "masked"),
    [
        (0.5, 0.66, 1.0, True),  # 0.16 upward and to go on upward
        (0.5, 0.64, 1.0, False),
        (0.5, 0.66, -1.0, False),  # the update brings it back
        (0.5, 0.34, -1.0, True),
        (0.5, 0.36, -1.0, False),
        (0.5, 0.34, 1.0, False),
        (0.001, 0.1, 1.0, False),  # the ratio is 100 and the shift 0.099, which the clip of PPO removes
        (0.99, 0.8, -1.0, True),  # the ratio is 0.81 and the shift 0.19, which the clip of PPO keeps
    ],
)
def test_total_variation_masks_a_token_that_moves_away_beyond_the_bound(old, new, advantage, masked):
    value = 0.0 if masked else -advantage * new / old
    assert loss_of("dppo_tv", old, new, advantage) == pytest.approx((value, value, float(masked)), rel=1e-5)


@pytest.mark.parametrize(
    ("old", "new", "advantage", "masked"),
    [
        (0.5, 0.66, 1.0, True),  # KL 0.5 ln(0.5/0.66) + 0.5 ln(0.5/0.34) = 0.0540 nats
        (0.5, 0.65, 1.0, False),  # 0.0472
        (0.5, 0.66, -1.0, False),
        (0.5, 0.34, -1.0, True),
        (0.5, 0.34, 1.0, False),
        (0.99, 0.94, -1.0, False),  # 0.0334
        (0.99, 0.90, -1.0, True),  # 0.0713
    ],
)
def test_binary_kl_masks_a_token_that_moves_away_beyond_the_bound(old, new, advantage, masked):
    value = 0.0 if masked else -advantage * new / old
    assert loss_of("dppo_kl", old, new, advantage) == pytest.approx((value, value, float(masked)), rel=1e-5)


@pytest.mark.parametrize("name", ["dppo_tv", "dppo_kl"])
def test_a_certain_token_has_a_finite_loss(name):
    loss, gradient, _ = loss_of(name, 1.0, 1.0, 1.0)
    assert (loss, gradient) == (-1.0, -1.0)


def test_bounds_below_and_above_are_keys():
    settings = parse({"trainer": {"objective": "dppo_tv", "correction": "none", "clip_high": 0.3}}).trainer
    assert (settings.clip_low, settings.clip_high) == (0.15, 0.3)
    logp, one = torch.tensor([[math.log(0.75)]]), torch.ones(1, 1)
    loss, _ = configured_loss(settings)(logp, torch.tensor([[math.log(0.5)]]), one, one, one)
    assert loss.item() == pytest.approx(-1.5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"objective": "dppo_tv"},
        {"objective": "dppo_kl", "correction": "mask"},
        {"objective": "dppo_tv", "correction": "none", "clip_low": 1.5},
        {"objective": "dppo_tv", "correction": "none", "dual_clip": {"factor": 3.0}},
    ],
)
def test_settings_that_would_weigh_twice_are_refused(wrong):
    with pytest.raises(ConfigError, match="trainer"):
        parse({"trainer": wrong})
