"""The attention head over patches, its loss, and the verifier of a point.

Shapes: B prompts, M patches of the longest screen, D width of the policy.
"""

import torch
from torch import Tensor, nn

EPSILON = 1e-8
HEADS = 8


class ActionHead(nn.Module):
    """Attention of the ``<ACTOR>`` token over the patches of a screen (arXiv 2506.03143, section 3).

    v' = LayerNorm(v + SelfAttention(v)), and the logit of a patch is MLP_T(h) . MLP_V(v') / sqrt(D), for the features v
    of the vision tower and the last hidden state h of ``<ACTOR>``. The token's embedding is ``actor_D``.
    """

    def __init__(self, width: int, scale: float = 0.02) -> None:
        super().__init__()
        self.actor_D = nn.Parameter(torch.randn(width) * scale)
        self.attention = nn.MultiheadAttention(width, HEADS, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.project_patch = two_layers(width, width)
        self.project_actor = two_layers(width, width)

    def forward(self, patches_BMD: Tensor, present_BM: Tensor, actor_BD: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits (B, M), -inf where no patch is ``present``, and the patches in context (B, M, D)."""
        seen_BMD, _ = self.attention(
            patches_BMD, patches_BMD, patches_BMD, key_padding_mask=~present_BM, need_weights=False
        )
        context_BMD = self.norm(patches_BMD + seen_BMD)
        logits_BM = torch.einsum("bmd,bd->bm", self.project_patch(context_BMD), self.project_actor(actor_BD))
        return (logits_BM / actor_BD.shape[-1] ** 0.5).masked_fill(~present_BM, -torch.inf), context_BMD


class Verifier(nn.Module):
    """Probability that a point is right, from the ``<ACTOR>`` state, the patch at the point, and its place."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.score = two_layers(2 * width + 4, 1, width)

    def forward(self, actor_BD: Tensor, context_BD: Tensor, place_B4: Tensor) -> Tensor:
        """Return the logits (B). ``place_B4`` is the point's place on the screen and in its patch, -1 to 1 each."""
        return self.score(torch.cat([actor_BD, context_BD, place_B4], -1))[:, 0]


def two_layers(width: int, out: int, inner: int | None = None) -> nn.Sequential:
    """Return a perceptron with one hidden layer."""
    return nn.Sequential(nn.Linear(width, inner or width), nn.GELU(), nn.Linear(inner or width, out))


def attention_loss(logits_BM: Tensor, labels_BM: Tensor) -> Tensor:
    """Return the mean over B of KL(p, a) (nats): a is the attention, p is uniform over the labeled patches."""
    labels_BM = labels_BM.to(logits_BM.dtype)
    wanted_BM = labels_BM / (labels_BM.sum(-1, keepdim=True) + EPSILON)
    logp_BM = logits_BM.log_softmax(-1).masked_fill(wanted_BM == 0, 0.0)
    return (torch.special.xlogy(wanted_BM, wanted_BM) - wanted_BM * logp_BM).sum(-1).mean()
