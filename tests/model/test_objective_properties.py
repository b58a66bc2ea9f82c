"""For every objective and any lengths: a padded micro-batch is the sum of its sequences, whatever padding holds."""

import math
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from dart_streams.config import Trainer, parse
from dart_streams.config.clip_bounds import CLIP_BOUNDS
from trainer.corrections import CORRECTIONS
from trainer.data.collate import MicroBatch
from trainer.hooks import DART, LossInputs, TrainingRules
from trainer.learning.step import Sums, batch_loss
from trainer.objective import OBJECTIVES, ROLLOUT_ANCHORED

VERSION = 3
PADDING = (math.nan, math.inf, -math.inf, 0.0, -5.0, 1e300)


class Answer(NamedTuple):
    """A sequence: what each model makes of its tokens, and what is known of them. All lists are of one length."""

    new: list[float]
    old: list[float]
    rollout: list[float]
    reference: list[float]
    entropy: list[float]
    advantage: float
    corrected: bool
    version: int


class Scored(nn.Module):
    """A model that is its own log-probabilities and entropies, so that gradients of each are seen."""

    def __init__(self, logp_BA: Tensor, entropy_BA: Tensor) -> None:
        super().__init__()
        self.logp_BA, self.entropy_BA = nn.Parameter(logp_BA), nn.Parameter(entropy_BA)

    def forward(self, _: MicroBatch) -> tuple[Tensor, Tensor]:
        return self.logp_BA, self.entropy_BA


class Outcome(NamedTuple):
    loss: float
    sums: Sums
    logp_gradient_BA: Tensor
    entropy_gradient_BA: Tensor


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    length = draw(st.integers(0, 6))
    logps = st.lists(st.floats(-8.0, 0.0), min_size=length, max_size=length)
    near = st.lists(st.floats(-1.0, 1.0), min_size=length, max_size=length)
    new = draw(logps)
    return Answer(
        new=new,
        old=[a + b for a, b in zip(new, draw(near), strict=True)],
        rollout=draw(logps),
        reference=draw(logps),
        entropy=draw(st.lists(st.floats(0.0, 5.0), min_size=length, max_size=length)),
        advantage=draw(st.floats(-3.0, 3.0)),
        corrected=draw(st.booleans()),
        version=draw(st.sampled_from([VERSION, VERSION - 1])),
    )


@st.composite
def trainers(draw: st.DrawFn, unmasked: bool = False) -> Trainer:
    """Draw settings; ``unmasked`` ones have bounds that no divergence reaches."""
    objective = draw(st.sampled_from(sorted(OBJECTIVES)))
    table: dict[str, Any] = {
        "objective": objective,
        "correction": "none" if objective in ROLLOUT_ANCHORED else draw(st.sampled_from(sorted(CORRECTIONS))),
        "kl_beta": draw(st.sampled_from([0.0, 0.1])),
        "entropy_coef": draw(st.sampled_from([0.0, 0.01])),
        "aggregate": draw(st.sampled_from(["tokens", "sequences"])),
    }
    if objective in ("ppo", "gspo"):
        table["dual_clip"] = {"factor": draw(st.sampled_from([0.0, 3.0]))}
    if unmasked and objective in ROLLOUT_ANCHORED:
        most = CLIP_BOUNDS[objective].low.most
        table |= dict.fromkeys(("clip_low", "clip_high"), min(most, 1e6))
    return parse({"trainer": table}).trainer


def rows(values: list[list[float]], width: int, fill: list[float]) -> Tensor:
    """Return (B, ``width``): each row's values, then padding; ``fill`` is used in turn."""
    padded, used = [], 0
    for row in values:
        missing = width - len(row)
        padded.append([*row, *(fill[(used + place) % len(fill)] for place in range(missing))])
        used += missing
    return torch.tensor(padded, dtype=torch.float64)


def outcome(
    batch: list[Answer],
    trainer: Trainer,
    first: bool,
    tokens: float,
    width: int,
    fill: list[float],
    rules: TrainingRules = DART,
) -> Outcome:
    """Return the loss, the sums and the gradients of these answers as one micro-batch, padded to ``width``."""
    mask_BA = torch.tensor([[place < len(item.new) for place in range(width)] for item in batch])
    corrected_BA = mask_BA & torch.tensor([[item.corrected] for item in batch])
    unused = dict.fromkeys(MicroBatch.__dataclass_fields__, torch.zeros(len(batch), width, dtype=torch.long))
    known = {
        "trunk_width": 0,
        "needs_mask": False,
        "images": {},
        "mask_BA": mask_BA,
        "rollout_logp_BA": rows([item.rollout for item in batch], width, fill),
        "corrected_BA": corrected_BA,
        "versions_BA": torch.tensor([[item.version] * width for item in batch]),
        "advantage_B1": torch.tensor(
            [[item.advantage if item.new else fill[0]] for item in batch], dtype=torch.float64
        ),
        "temperature_B": torch.ones(len(batch)),
    }
    micro_batch = MicroBatch(**unused | known)
    entropy_BA = rows([item.entropy for item in batch], width, fill)
    scorer = Scored(rows([item.new for item in batch], width, fill), entropy_BA)
    reference = Scored(rows([item.reference for item in batch], width, fill), entropy_BA)
    old_BA = None if first else rows([item.old for item in batch], width, fill)
    loss, sums = batch_loss(
        scorer, micro_batch, old_BA, trainer, VERSION, tokens, reference if trainer.kl_beta else None, rules=rules
    )
    loss.backward()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in (scorer.logp_BA, scorer.entropy_BA)]
    return Outcome(loss.item(), sums, *gradients)


@given(
    st.lists(answers(), min_size=1, max_size=4),
    trainers(),
    st.booleans(),
    st.integers(0, 3),
    st.lists(st.sampled_from(PADDING), min_size=1, max_size=7),
)
def test_a_padded_micro_batch_is_the_sum_of_its_sequences(batch, trainer, first, extra, fill):
    lengths = [len(item.new) for item in batch]
    tokens = float(max(1, sum(lengths) if trainer.aggregate == "tokens" else sum(map(bool, lengths))))
    padded = outcome(batch, trainer, first, tokens, max(1, *lengths) + extra, fill)
    alone = [outcome([item], trainer, first, tokens, len(item.new), [0.0]) for item in batch if item.new]

    assert padded.loss == pytest.approx(sum(part.loss for part in alone), rel=1e-9, abs=1e-12)
    expected = [sum(values) for values in zip(*(part.sums for part in alone), strict=True)] or [0.0] * len(Sums._fields)
    assert list(padded.sums) == pytest.approx(expected, rel=1e-6, abs=1e-12)
    for name in ("logp_gradient_BA", "entropy_gradient_BA"):
        gradient_BA = getattr(padded, name)
        parts = iter(alone)
        for row, length in enumerate(lengths):
            assert (gradient_BA[row, length:] == 0).all(), "padding has no gradient, not even nan"
            if length:
                torch.testing.assert_close(gradient_BA[row, :length], getattr(next(parts), name)[0])


@given(answers().filter(lambda item: bool(item.new)), trainers(unmasked=True))
def test_the_first_update_has_the_gradient_of_weighted_reinforce(item, trainer):
    """All ratios to the old policy are 1 then, where no bound acts; those to the engine's are DPPO's weight."""
    update = outcome([item], trainer, True, 1.0, len(item.new), [0.0])
    counts = len(item.new) if trainer.aggregate == "sequences" else 1
    plain = Scored(rows([item.new], len(item.new), [0.0]), rows([item.entropy], len(item.new), [0.0]))
    new, width = plain.logp_BA, len(item.new)
    ratio = (new.detach() - rows([item.rollout], width, [0.0])).exp()
    mean, product = ratio.log().mean().exp(), ratio.prod()
    weight = {
        "truncate": ratio.clamp(max=trainer.truncate.cap),
        "mask": torch.where((ratio >= trainer.mask.low) & (ratio <= trainer.mask.high), ratio, 0.0),
        "geometric_mask": torch.ones_like(ratio) * (0.99 <= mean <= 1.01),
        "sequence_mask": torch.ones_like(ratio) * product * (0.5 <= product <= 2.0),
        "none": torch.ones_like(ratio),
    }[trainer.correction]
    if trainer.objective in ROLLOUT_ANCHORED:
        weight = ratio
    if not item.corrected:
        weight = torch.ones_like(weight)
    away = rows([item.reference], width, [0.0]) - new
    kl = (away.exp() - 1 - away).clamp(max=10.0)
    loss = -(weight * item.advantage * new).sum() + trainer.kl_beta * kl.sum()
    (loss / counts).backward()
    assert new.grad is not None
    torch.testing.assert_close(update.logp_gradient_BA, new.grad, rtol=1e-4, atol=1e-6)
    assert update.sums.clip_share == 0
    torch.testing.assert_close(
        update.entropy_gradient_BA, torch.full_like(update.entropy_gradient_BA, -trainer.entropy_coef / counts)
    )


def test_a_rule_replaces_the_policy_loss_and_terms_are_added():
    """The loss is 2 A log p / tokens in place of the objective, and each token adds 0.5 log p / tokens."""

    def own_loss(inputs: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
        loss = (2.0 * inputs.batch.advantage_B1 * inputs.new_logp_BA).sum() / inputs.total
        return loss, {"clip_fraction": torch.tensor(0.25), "ratio": torch.tensor(1.0)}

    def own_term(inputs: LossInputs) -> Tensor:
        return 0.5 * inputs.new_logp_BA.sum() / inputs.total

    item = Answer([-1.0, -3.0], [-1.0, -3.0], [-1.0, -3.0], [0.0, 0.0], [0.0, 0.0], 3.0, True, VERSION)
    rules = TrainingRules(loss=own_loss, terms=own_term)
    update = outcome([item], parse({}).trainer, True, 2.0, 2, [0.0], rules)
    assert update.loss == pytest.approx(-12.0 - 1.0)
    assert (update.sums.terms, update.sums.clip_share) == (-1.0, 0.25)
    assert update.logp_gradient_BA.tolist() == [[3.25, 3.25]]
