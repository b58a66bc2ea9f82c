"""Keys that save memory: steps with them are those without, for several model families, by one rank and by two."""

import functools
from pathlib import Path
from typing import Any

import pytest
import torch

from dart_streams.config import parse
from dart_streams.errors import UserError
from dart_streams.policy.rendering import Renderer
from tests.model.families import FAMILIES
from tests.model.two_ranks import COUNTED_BY_RANK, StepSetup, step_of
from trainer.learning.learner import Learner

BLOCKS = {"min_images": 2, "max_images": 3, "min_texts": 2, "max_texts": 4}
SETUPS = {
    "all weights": StepSetup(steps=8, policy=BLOCKS),
    "adapters": StepSetup(steps=8, policy=BLOCKS, rank=3),
    "a frozen vision tower": StepSetup(steps=8, policy=BLOCKS, trainer={"freeze_vision": True}),
}
"""Rows of several steps and branches, with KL to a reference, imitation and an entropy bonus."""
KEYS = {
    "recomputed": {"recompute": True},
    "chunks of the head": {"head_tokens": 5},
    "offloaded": {"offload": "all"},
}
ALL_KEYS = {"recompute": True, "head_tokens": 7, "offload": "all"}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("family") / request.param
    FAMILIES[request.param](folder)
    return folder


PLAIN: dict[tuple[Path, str], dict[str, Any]] = {}


def assert_same_step(model: Path, setup: str, ranks: int, keys: dict[str, Any], folder: Path) -> None:
    """Compare gradients, metrics and probe of a step by one rank with those of a step with ``keys``."""
    made = SETUPS[setup]
    if (model, setup) not in PLAIN:
        PLAIN[model, setup] = step_of(model, 1, folder / "plain.pt", made)
    plain = PLAIN[model, setup]
    saving = step_of(model, ranks, folder / "step.pt", made._replace(trainer={**made.trainer, **keys}))
    assert saving["gradients"].keys() == plain["gradients"].keys()
    for name, gradient in plain["gradients"].items():
        assert (saving["gradients"][name] - gradient).norm() <= 1e-5 * gradient.norm() + 1e-8, name
    for name in plain["figures"].keys() - COUNTED_BY_RANK:
        assert saving["figures"][name] == pytest.approx(plain["figures"][name], rel=1e-4, abs=1e-6), name
    assert saving["probe"] == pytest.approx(plain["probe"], abs=1e-5)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("setup", SETUPS)
def test_a_step_that_saves_memory_is_the_step_that_does_not(family, tmp_path, setup, ranks):
    assert_same_step(family, setup, ranks, ALL_KEYS, tmp_path)


@pytest.mark.parametrize("keys", KEYS)
def test_each_key_alone_leaves_the_step(policy, tmp_path, keys):
    assert_same_step(policy, "all weights", 2, KEYS[keys], tmp_path)


def test_a_model_that_alters_its_logits_is_refused_in_chunks(policy, renderer: Renderer, ranks, monkeypatch):
    from transformers import Qwen2_5_VLForConditionalGeneration as Model

    forward = Model.forward

    @functools.wraps(forward)
    def capped(self: Any, *given: Any, **named: Any) -> Any:
        output = forward(self, *given, **named)
        output.logits = torch.tanh(output.logits)
        return output

    monkeypatch.setattr(Model, "forward", capped)
    with pytest.raises(UserError, match=r"trainer\.head_tokens = 5: the logits of Qwen2_5_VL.*set it to 0"):
        Learner(policy, renderer, parse({"trainer": {"head_tokens": 5}}).trainer, ranks)
