"""An objective of one's own: REINFORCE with a leave-one-out baseline in place of the clipped ratio.

Trains a policy of one categorical distribution on made-up rewards, with this objective and with the project's own.
``.venv/model/bin/python -m examples.objective``; docs/development.md says how an objective becomes a key.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from trainer.objective import Metrics, policy_loss

Objective = Callable[..., tuple[Tensor, Metrics]]
REWARDS_A = torch.tensor([0.0, 0.1, 1.0, 0.2])
"""(A,): the reward of each action."""


def reinforce_loss(
    new_logp_BT: Tensor,
    old_logp_BT: Tensor,
    advantage_BT: Tensor,
    mask_BT: Tensor,
    weight_BT: Tensor,
    clip_low: float = 0.0,
    clip_high: float = 0.0,
    denominator: float | None = None,
) -> tuple[Tensor, Metrics]:
    """Return ``-mean(weight * advantage * log p)`` over unmasked tokens, and metrics (0-d tensors).

    Shapes are (B, T), broadcastable, as for every objective; bounds are not used. Source: Williams, 1992.
    """
    tokens = mask_BT.sum() if denominator is None else denominator
    loss = -(weight_BT * advantage_BT * new_logp_BT * mask_BT).sum() / tokens
    return loss, {"nll": (-(new_logp_BT * mask_BT).sum() / tokens).detach()}


def leave_one_out(reward_B: Tensor) -> Tensor:
    """Return each reward less the mean of the others, (B,)."""
    return reward_B - (reward_B.sum() - reward_B) / (len(reward_B) - 1)


def train(loss_of: Objective, updates: int = 60, batch: int = 64, seed: int = 0) -> float:
    """Return the expected reward after training from the uniform policy."""
    generator = torch.Generator().manual_seed(seed)
    logits_A = torch.zeros(len(REWARDS_A), requires_grad=True)
    optimizer = torch.optim.SGD([logits_A], lr=2.0)
    for _ in range(updates):
        old_logp_A = logits_A.detach().log_softmax(-1)
        action_B = torch.multinomial(old_logp_A.exp(), batch, replacement=True, generator=generator)
        advantage_B1 = leave_one_out(REWARDS_A[action_B])[:, None]
        new_logp_B1 = logits_A.log_softmax(-1)[action_B][:, None]
        ones_B1 = torch.ones_like(advantage_B1)
        loss, _ = loss_of(new_logp_B1, old_logp_A[action_B][:, None], advantage_B1, ones_B1, ones_B1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return float((logits_A.detach().softmax(-1) * REWARDS_A).sum())


def main() -> None:
    """Print the expected reward with each objective."""
    print(f"uniform policy: {REWARDS_A.mean():.2f}")
    for name, objective in (("reinforce", reinforce_loss), ("policy_loss", policy_loss)):
        print(f"{name}: {train(objective):.2f}")


if __name__ == "__main__":
    main()
