"""The objective against literal values: the paper's rules worked out by hand."""

import math

import pytest
import torch

from dart_streams.config import parse
from dart_streams.errors import ConfigError
from trainer.objective import OBJECTIVES, clipped_weight_loss, count, kl_k3, policy_loss, sequence_loss, token_logp


def row(*values: float) -> torch.Tensor:
    return torch.tensor([values])


def loss_of(new_logp: float, old_logp: float, advantage: float, weight: float = 1.0) -> float:
    loss, _ = policy_loss(row(new_logp), row(old_logp), row(advantage), row(1.0), row(weight))
    return loss.item()


@pytest.mark.parametrize(
    ("advantage", "ratio", "objective"),
    [(1.0, 1.5, 1.28), (-1.0, 0.5, -0.8), (1.0, 1.1, 1.1), (-1.0, 1.5, -1.5), (1.0, 0.5, 0.5), (-1.0, 0.9, -0.9)],
)
def test_the_ratio_is_clipped_only_where_it_would_go_too_far(advantage, ratio, objective):
    assert -loss_of(math.log(ratio), 0.0, advantage) == pytest.approx(objective, rel=1e-6)


def test_a_clipped_token_has_no_gradient_and_is_counted():
    new = torch.log(row(1.5, 1.1, 0.5, 0.9)).requires_grad_()
    loss, metrics = policy_loss(new, row(0.0, 0.0, 0.0, 0.0), row(1.0, 1.0, -1.0, -1.0), torch.ones(1, 4), row(1.0))
    loss.backward()
    assert (new.grad == 0).tolist() == [[True, False, True, False]]
    assert metrics["clip_fraction"].item() == 0.5
    assert metrics["ratio"].item() == pytest.approx(1.0)


def test_the_truncated_weight_scales_the_clipped_loss():
    assert loss_of(math.log(1.5), 0.0, 1.0, weight=0.3679) == pytest.approx(-1.28 * 0.3679)


def test_a_batch_without_tokens_has_loss_zero():
    loss, _ = policy_loss(row(-1.0), row(-1.0), row(1.0), row(0.0), row(1.0))
    assert loss.item() == 0.0


def test_only_the_new_log_probabilities_get_a_gradient():
    tensors = [row(-0.5).requires_grad_() for _ in range(3)]
    loss, _ = policy_loss(tensors[0], tensors[1], tensors[2], row(1.0), row(1.0))
    loss.backward()
    assert [tensor.grad is not None for tensor in tensors] == [True, False, False]


@pytest.mark.parametrize(
    ("advantage", "ratio", "objective"),
    [(-1.0, 20.0, -10.0), (-1.0, 9.0, -9.0), (-1.0, 0.5, -0.8), (1.0, 20.0, 1.28), (-2.0, 20.0, -20.0)],
)
def test_the_dual_clip_bounds_what_a_runaway_ratio_costs(advantage, ratio, objective):
    new = row(math.log(ratio)).requires_grad_()
    loss, metrics = policy_loss(new, row(0.0), row(advantage), row(1.0), row(1.0), dual_clip=10.0)
    loss.backward()
    assert -loss.item() == pytest.approx(objective, rel=1e-5)
    assert new.grad is not None
    clipped = ratio != 9.0
    assert (new.grad.item() == 0.0) == clipped
    assert metrics["clip_fraction"].item() == float(clipped)


def gspo(new: torch.Tensor, advantage: float, mask: torch.Tensor | None = None, **clip: float) -> torch.Tensor:
    ones = torch.ones_like(new)
    loss, _ = sequence_loss(new, torch.zeros_like(new), row(advantage), ones if mask is None else mask, ones, **clip)
    return loss


def test_gspo_clips_the_geometric_mean_of_a_sequence_and_not_its_tokens():
    """Ratios 2 and 1/2 have the mean 1; 2 and 2 have 2. PPO would clip a token of the first sequence."""
    wide = {"clip_low": 0.2, "clip_high": 0.28}
    assert gspo(torch.log(row(2.0, 0.5)), 1.0, **wide).item() == pytest.approx(-1.0, rel=1e-6)
    assert gspo(torch.log(row(2.0, 2.0)), 1.0, **wide).item() == pytest.approx(-1.28, rel=1e-6)
    assert gspo(torch.log(row(4.0, 0.25, 1.1**3)), 1.0, **wide).item() == pytest.approx(-1.1, rel=1e-6)
    assert gspo(torch.log(row(0.5, 0.5)), -1.0, **wide).item() == pytest.approx(0.8, rel=1e-6)


@pytest.mark.parametrize(("drift", "clipped"), [(3.9e-4, False), (4.1e-4, True), (-3.1e-4, False)])
def test_the_clip_of_gspo_is_by_default_the_papers(drift, clipped):
    new = row(drift, drift).requires_grad_()
    gspo(new, 1.0).backward()
    assert new.grad is not None
    assert (new.grad == 0).all().item() == clipped


def test_the_gradient_of_gspo_is_that_of_its_formula_differentiated():
    """The mean over sequences of (pi_new(y) / pi_old(y)) ** (1 / |y|) * A: equations 5 to 7 of arXiv 2507.18071."""
    torch.manual_seed(1)
    new, mask = (-torch.rand(2, 4)).requires_grad_(), torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
    old, advantage = -torch.rand(2, 4), torch.tensor([[1.5], [-0.7]])
    wide = {"clip_low": 0.9, "clip_high": 9.0}
    loss, metrics = sequence_loss(new, old, advantage, mask, torch.ones(2, 4), **wide)
    loss.backward()
    assert metrics["clip_fraction"].item() == 0.0
    plain = new.detach().clone().requires_grad_()
    ratio_B = (((plain - old) * mask).sum(1) / mask.sum(1)).exp()
    (-(ratio_B * advantage[:, 0]).mean()).backward()
    torch.testing.assert_close(new.grad, plain.grad)


@pytest.mark.parametrize(
    ("aggregate", "loss", "gradients"), [("sequences", 0.0, (-0.125, 0.5)), ("tokens", -0.6, (-0.2, 0.2))]
)
@pytest.mark.parametrize("name", list(OBJECTIVES))
def test_answers_of_unequal_length_count_alike_or_by_their_tokens(name, aggregate, loss, gradients):
    """Answers of 4 and 1 tokens with advantages +1 and -1, at ratio 1."""
    new = torch.zeros(2, 4, requires_grad=True)
    mask, advantage = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0]]), torch.tensor([[1.0], [-1.0]])
    mean, metrics = OBJECTIVES[name](new, new.detach(), advantage, mask, torch.ones(2, 4), aggregate=aggregate)
    mean.backward()
    assert new.grad is not None
    assert new.grad[0].tolist() == pytest.approx([gradients[0]] * 4)
    assert new.grad[1].tolist() == pytest.approx([gradients[1], 0.0, 0.0, 0.0])
    if name != "cispo":  # its loss is -A log new, which is 0 here
        assert mean.item() == pytest.approx(loss)
    assert (metrics["ratio"].item(), metrics["tokens"].item()) == (pytest.approx(1.0), 5)


def test_gspo_by_default_counts_sequences_alike():
    assert parse({"trainer": {"objective": "gspo"}}).trainer.aggregate == "sequences"
    assert parse({"trainer": {"objective": "gspo", "aggregate": "tokens"}}).trainer.aggregate == "tokens"
    assert {parse({"trainer": {"objective": name}}).trainer.aggregate for name in ("ppo", "cispo")} == {"tokens"}
    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0]])
    batch = (torch.zeros(2, 4), torch.zeros(2, 4), torch.tensor([[1.0], [-1.0]]), mask, row(1.0))
    assert sequence_loss(*batch)[0].item() == 0.0, "as with each answer's mean, and not the -0.6 of a mean over tokens"
    assert sequence_loss(*batch, aggregate="tokens")[0].item() == pytest.approx(-0.6)


@pytest.mark.parametrize("name", list(OBJECTIVES))
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_ratio_beyond_float32_leaves_the_other_tokens_their_gradient(name, advantage):
    new = torch.zeros(2, 1, requires_grad=True)
    old = torch.tensor([[-100.0], [0.0]])
    loss, _ = OBJECTIVES[name](new, old, row(advantage), torch.ones(2, 1), row(1.0), aggregate="tokens")
    loss.backward()
    assert math.isfinite(loss.item())
    assert new.grad is not None
    assert torch.isfinite(new.grad).all()
    assert new.grad[1].item() == pytest.approx(-advantage / 2)


def test_cispo_keeps_the_gradient_that_the_clip_of_ppo_removes():
    new = torch.log(row(1.5, 0.5)).requires_grad_()
    loss, metrics = clipped_weight_loss(new, row(0.0, 0.0), row(1.0), torch.ones(1, 2), row(1.0))
    loss.backward()
    assert new.grad is not None
    assert new.grad[0].tolist() == pytest.approx([-1.28 / 2, -0.5 / 2])
    assert metrics["clip_fraction"].item() == 0.5
    assert metrics["ratio"].item() == pytest.approx(1.0)


@pytest.mark.parametrize("name", list(OBJECTIVES))
def test_every_objective_is_reinforce_at_ratio_one_and_deaf_to_padding(name):
    new = row(-0.5, -1.0, math.nan, -math.inf).requires_grad_()
    old, weight = row(-0.5, -1.0, 0.0, math.inf), row(1.0, 0.5, math.nan, 1.0)
    loss, metrics = OBJECTIVES[name](new, old, row(3.0), row(1.0, 1.0, 0.0, 0.0), weight, 0.2, 0.28)
    loss.backward()
    assert math.isfinite(loss.item())
    assert new.grad is not None
    assert new.grad.tolist() == [[-1.5, -0.75, 0.0, 0.0]]
    assert (metrics["tokens"].item(), metrics["clip_fraction"].item()) == (2, 0.0)


@pytest.mark.parametrize("aggregate", ["tokens", "sequences"])
@pytest.mark.parametrize("name", list(OBJECTIVES))
def test_micro_batches_of_every_objective_add_up_to_the_whole(name, aggregate):
    torch.manual_seed(2)
    new, old, weight = -torch.rand(6, 5), -torch.rand(6, 5), torch.rand(6, 5)
    mask, advantage = torch.rand(6, 5) > 0.4, torch.randn(6, 1)
    whole, whole_metrics = OBJECTIVES[name](new, old, advantage, mask, weight, aggregate=aggregate)
    shared = {"denominator": count(mask, aggregate), "aggregate": aggregate}
    cuts = (slice(0, 1), slice(1, 4), slice(4, 6))
    parts = [OBJECTIVES[name](new[i], old[i], advantage[i], mask[i], weight[i], **shared) for i in cuts]
    assert sum(loss for loss, _ in parts).item() == pytest.approx(whole.item(), rel=1e-5)
    for metric, value in whole_metrics.items():
        assert sum(metrics[metric] for _, metrics in parts).item() == pytest.approx(value.item(), rel=1e-5)


@pytest.mark.parametrize(
    "wrong",
    [{"dual_clip": {"factor": 0.5}}, {"dual_clip": {"factor": 3.0}, "objective": "cispo"}, {"objective": "grpo"}],
)
def test_settings_that_mean_nothing_are_refused(wrong):
    with pytest.raises(ConfigError, match="trainer"):
        parse({"trainer": wrong})


def k3(new: float, reference: float) -> float:
    return kl_k3(row(new), row(reference), row(1.0)).item()


def test_kl_k3_is_zero_at_equality_and_positive_elsewhere():
    assert k3(-1.0, -1.0) == 0.0
    assert k3(-1.0, -2.0) == pytest.approx(math.exp(-1) - 1 + 1)
    assert k3(-2.0, -1.0) == pytest.approx(math.e - 1 - 1)


@pytest.mark.parametrize(("new", "reference"), [(-40.0, -1.0), (-90.0, 0.0), (-1.0, -40.0), (0.0, -math.inf)])
def test_kl_k3_is_bounded_and_has_a_finite_gradient(new, reference):
    logp = row(new, -1.0).requires_grad_()
    kl = kl_k3(logp, row(reference, -1.5), row(1.0, 1.0))
    kl.sum().backward()
    assert kl[0, 0].item() == 10.0
    assert logp.grad is not None
    assert logp.grad[0].tolist() == pytest.approx([0.0, 1 - math.exp(-0.5)])


@pytest.mark.parametrize("reference", [math.nan, math.inf, -math.inf, 500.0])
def test_what_the_mask_of_kl_k3_leaves_out_has_neither_value_nor_gradient(reference):
    new = row(-0.5, -1.0).requires_grad_()
    kl = kl_k3(new, row(reference, -1.5), torch.tensor([[0, 1]]))
    kl.sum().backward()
    assert kl[0, 0].item() == 0.0 < kl[0, 1].item()
    assert new.grad is not None
    assert new.grad[0, 0].item() == 0.0 != new.grad[0, 1].item()
    assert torch.isfinite(new.grad).all()


def test_the_value_of_kl_k3_is_one_direction_and_its_gradient_the_other():
    """Over all tokens of a distribution, weighted by the policy as sampling would."""
    logits = torch.tensor([0.3, -0.2, 0.9, 0.0], requires_grad=True)
    reference = torch.tensor([-0.5, 0.4, 0.1, 0.2]).log_softmax(0)
    new = logits.log_softmax(0)
    policy = new.detach().exp()
    expected = (policy * kl_k3(new, reference, torch.ones(4))).sum()
    assert expected.item() == pytest.approx((policy * (new.detach() - reference)).sum().item(), rel=1e-5)
    expected.backward()
    forward = torch.autograd.grad((reference.exp() * (reference - logits.log_softmax(0))).sum(), logits)[0]
    torch.testing.assert_close(logits.grad, forward, rtol=1e-5, atol=1e-7)


def test_forbidden_tokens_take_no_probability():
    logits = torch.tensor([[[2.0, 2.0, 9.0]]])
    logp, entropy = token_logp(logits, torch.tensor([[0]]), torch.tensor([False, False, True]), torch.tensor(1.0))
    assert logp.item() == pytest.approx(math.log(0.5))
    assert entropy.item() == pytest.approx(math.log(2))


def test_log_probabilities_use_their_sequences_temperature():
    logits = torch.tensor([[[0.0, math.log(3)]], [[0.0, math.log(9)]]])
    logp, _ = token_logp(logits, torch.tensor([[1], [1]]), torch.zeros(2, dtype=torch.bool), torch.tensor([1.0, 2.0]))
    assert logp.exp().flatten().tolist() == pytest.approx([0.75, 0.75])


def test_log_probabilities_of_half_precision_logits_are_float32():
    logits = torch.zeros(1, 1, 7, dtype=torch.bfloat16)
    logp, entropy = token_logp(logits, torch.tensor([[3]]), torch.zeros(7, dtype=torch.bool), torch.tensor(1.0))
    assert logp.dtype == entropy.dtype == torch.float32
    assert logp.item() == pytest.approx(-math.log(7))


def test_entropy_has_a_finite_gradient_beside_forbidden_tokens():
    torch.manual_seed(3)
    logits = torch.randn(1, 2, 4, requires_grad=True)
    forbidden = torch.tensor([False, True, False, False])
    _, entropy = token_logp(logits, torch.tensor([[0, 2]]), forbidden, torch.tensor(1.0))
    entropy.sum().backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    assert (logits.grad[..., 1] == 0).all()
