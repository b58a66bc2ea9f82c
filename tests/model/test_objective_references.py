"""Each objective against the formula of its paper, written as loops over answers and tokens in plain Python."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.objective import OBJECTIVES

BOUNDS = {
    "ppo": (0.2, 0.28),
    "gspo": (3e-4, 4e-4),
    "cispo": (1.0, 0.28),
    "dppo_tv": (0.15, 0.2),
    "dppo_kl": (0.05, 0.1),
}


class Answer(NamedTuple):
    """One sequence: log-probabilities of its tokens (nats), its advantage and its tokens' importance weights."""

    new: list[float]
    old: list[float]
    weight: list[float]
    advantage: float


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    length = draw(st.integers(1, 40))
    column = st.lists(st.floats(-6.0, 0.0), min_size=length, max_size=length)
    drift = draw(st.lists(st.floats(-0.6, 0.6), min_size=length, max_size=length))
    new = draw(column)
    weight = draw(st.lists(st.floats(0.0, 1.0), min_size=length, max_size=length))
    old = [a + b for a, b in zip(new, drift, strict=True)]
    return Answer(new, old, weight, draw(st.floats(-3.0, 3.0)))


def clip(ratio: float, low: float, high: float) -> float:
    return min(max(ratio, 1 - low), 1 + high)


def ppo_terms(answer: Answer) -> list[float]:
    """DAPO, arXiv 2503.14476, equation 8: min(r A, clip(r) A) of each token, r = pi_new / pi_old."""
    terms = []
    for new, old in zip(answer.new, answer.old, strict=True):
        ratio = math.exp(new - old)
        terms.append(min(ratio * answer.advantage, clip(ratio, *BOUNDS["ppo"]) * answer.advantage))
    return terms


def gspo_terms(answer: Answer) -> list[float]:
    """GSPO, arXiv 2507.18071, equations 5 and 7: s = (pi_new(y) / pi_old(y)) ** (1 / |y|), the same for each token."""
    ratio = math.exp((sum(answer.new) - sum(answer.old)) / len(answer.new))
    term = min(ratio * answer.advantage, clip(ratio, *BOUNDS["gspo"]) * answer.advantage)
    return [term] * len(answer.new)


def cispo_terms(answer: Answer) -> list[float]:
    """MiniMax-M1, arXiv 2506.13585, equation 4: sg(clip(r)) A log pi_new of each token."""
    pairs = zip(answer.new, answer.old, strict=True)
    return [clip(math.exp(new - old), *BOUNDS["cispo"]) * answer.advantage * new for new, old in pairs]


def total_variation(old: float, new: float) -> float:
    """DPPO, arXiv 2602.04879, equation 13: the difference of the token's probabilities."""
    return abs(math.exp(old) - math.exp(new))


def binary_kl(old: float, new: float) -> float:
    """DPPO, arXiv 2602.04879, equation 14: KL of the token against all others; 1e-8 keeps their share above 0."""
    p, rest_old, rest_new = math.exp(old), max(-math.expm1(old), 1e-8), max(-math.expm1(new), 1e-8)
    return p * (old - new) + rest_old * math.log(rest_old / rest_new)


def dppo_terms(answer: Answer, divergence: Callable[[float, float], float], low: float, high: float) -> list[float]:
    """DPPO, arXiv 2602.04879, equations 11 and 12: M r A, M = 0 where an update would go on beyond the bound."""
    terms = []
    for new, old in zip(answer.new, answer.old, strict=True):
        ratio = math.exp(new - old)
        beyond = divergence(old, new) > (high if answer.advantage > 0 else low)
        away = ratio > 1 if answer.advantage > 0 else ratio < 1
        terms.append(0.0 if beyond and away else ratio * answer.advantage)
    return terms


TERMS: dict[str, Callable[[Answer], list[float]]] = {
    "ppo": ppo_terms,
    "gspo": gspo_terms,
    "cispo": cispo_terms,
    "dppo_tv": lambda answer: dppo_terms(answer, total_variation, *BOUNDS["dppo_tv"]),
    "dppo_kl": lambda answer: dppo_terms(answer, binary_kl, *BOUNDS["dppo_kl"]),
}


def reference_loss(name: str, batch: Sequence[Answer], aggregate: str) -> float:
    """Return the loss by loops: the mean over all tokens, or over answers of their token means."""
    weighted = [[w * term for w, term in zip(a.weight, TERMS[name](a), strict=True)] for a in batch]
    if aggregate == "tokens":
        return -sum(map(sum, weighted)) / sum(map(len, weighted))
    return -sum(sum(terms) / len(terms) for terms in weighted) / len(weighted)


def padded(rows: Sequence[Sequence[float]], width: int) -> torch.Tensor:
    return torch.tensor([[*row, *[0.0] * (width - len(row))] for row in rows], dtype=torch.float64)


@pytest.mark.parametrize("aggregate", ["tokens", "sequences"])
@pytest.mark.parametrize("name", list(OBJECTIVES))
@given(batch=st.lists(answers(), min_size=1, max_size=5))
def test_an_objective_is_the_formula_of_its_paper(name, aggregate, batch):
    width = max(len(answer.new) for answer in batch)
    new, old, weight = (padded([getattr(a, key) for a in batch], width) for key in ("new", "old", "weight"))
    mask = padded([[1.0] * len(a.new) for a in batch], width)
    advantage = torch.tensor([[a.advantage] for a in batch], dtype=torch.float64)
    loss, _ = OBJECTIVES[name](new, old, advantage, mask, weight, *BOUNDS[name], aggregate=aggregate)
    assert loss.item() == pytest.approx(reference_loss(name, batch, aggregate), rel=1e-6, abs=1e-6)
