"""GUI-Actor: the attention head and its loss by hand on four patches, and what both heads learn of one policy."""

import math

import pytest
import torch

from dart_streams.recipes.gui_actor.head import ActionHead, attention_loss

LEFT = torch.tensor([[True, False, True, False]])
"""Of 2 x 2 patches the left column overlaps the target."""


def test_the_loss_is_the_divergence_from_the_uniform_target():
    even = torch.zeros(1, 4, requires_grad=True)
    loss = attention_loss(even, LEFT)
    assert loss.item() == pytest.approx(math.log(2)), "1/2 log(1/2 / 1/4), twice"
    loss.backward()
    assert even.grad.tolist() == [pytest.approx([-0.25, 0.25, -0.25, 0.25])], "attention less target"


def test_the_loss_asks_for_all_patches_of_the_target():
    one = attention_loss(torch.tensor([[0.8, 0.1, 0.05, 0.05]]).log(), LEFT).item()
    assert one == pytest.approx(0.5 * math.log(0.5 / 0.8) + 0.5 * math.log(0.5 / 0.05))
    both = torch.tensor([[0.45, 0.05, 0.45, 0.05]]).log()
    assert attention_loss(both, LEFT).item() == pytest.approx(math.log(0.5 / 0.45), abs=1e-6) and one > 0.9


def test_the_loss_is_a_mean_over_prompts_and_ignores_absent_patches():
    logits = torch.zeros(2, 4)
    logits[1, 2:] = -torch.inf
    logits.requires_grad_()
    loss = attention_loss(logits, torch.tensor([[True, False, True, False], [True, True, False, False]]))
    assert loss.item() == pytest.approx(math.log(2) / 2)
    loss.backward()
    assert logits.grad.isfinite().all()


def test_the_logits_are_scaled_products_of_the_actor_and_the_patches():
    torch.manual_seed(0)
    head, patches, actor = ActionHead(16), torch.randn(1, 4, 16), torch.randn(1, 16)
    present = torch.ones(1, 4, dtype=torch.bool)
    logits, context = head(patches, present, actor)
    attended = head.attention(patches, patches, patches)[0]
    assert torch.allclose(context, head.norm(patches + attended), atol=1e-6)
    by_hand = [(head.project_patch(context[0, m]) @ head.project_actor(actor[0])).item() / 4 for m in range(4)]
    assert logits[0].tolist() == pytest.approx(by_hand, abs=1e-5)


def test_padding_changes_no_logit_and_gets_no_attention():
    torch.manual_seed(0)
    head, patches, actor = ActionHead(16), torch.randn(1, 4, 16), torch.randn(1, 16)
    alone, _ = head(patches, torch.ones(1, 4, dtype=torch.bool), actor)
    padded = torch.cat([patches, torch.randn(1, 2, 16)], 1)
    logits, _ = head(padded, torch.tensor([[True] * 4 + [False] * 2]), actor)
    assert torch.allclose(logits[:, :4], alone, atol=1e-6)
    assert logits.softmax(-1)[0, 4:].tolist() == [0, 0]
