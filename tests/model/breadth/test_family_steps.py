"""Steps of several ranks, of rows of several steps, and with keys that save memory are the plain ones, for each family.

The steps of a family by as many ranks are made by one job, one after the other.
"""

import functools
from typing import Any, NamedTuple

import pytest
import torch

from dart_streams.config import parse
from dart_streams.errors import UserError
from dart_streams.policy import adapters, weights
from dart_streams.policy.rendering import Renderer
from tests.model.families import FAMILIES
from tests.model.two_ranks import COUNTED_BY_RANK, StepSetup, steps_of
from trainer.learning.learner import Learner

BLOCKS = {"min_images": 2, "max_images": 3, "min_texts": 2, "max_texts": 4}
ROWS = {
    "all weights": StepSetup(steps=8, policy=BLOCKS),
    "adapters": StepSetup(steps=8, policy=BLOCKS, rank=3),
    "a frozen vision tower": StepSetup(steps=8, policy=BLOCKS, trainer={"freeze_vision": True}),
}
"""Rows of several steps and branches, with KL to a reference, imitation and an entropy bonus."""
ALL_KEYS = {"recompute": True, "head_tokens": 7, "offload": "all"}
KEYS = {"recomputed": {"recompute": True}, "chunks of the head": {"head_tokens": 5}, "offloaded": {"offload": "all"}}
UPDATES = {
    "one update": StepSetup(1, "tokens"),
    "minibatches": StepSetup(3, "sequences"),
    "one update of adapters": StepSetup(1, rank=3),
    "minibatches of adapters": StepSetup(3, rank=3),
}
"""Rank 3 of an adapter on two ranks: A's rows are shared unequally, and each rank merges the rows it has."""
pytestmark = pytest.mark.timeout(2400)
TINY = "qwen2_5_vl"
"""The family that has all setups."""


class Steps(NamedTuple):
    """A family's steps by setup, of one rank and of two."""

    family: str
    one: dict[str, dict[str, Any]]
    two: dict[str, dict[str, Any]]


def saving(setup: StepSetup, keys: dict[str, Any]) -> StepSetup:
    return setup._replace(trainer={**setup.trainer, **keys})


@pytest.fixture(scope="module", params=FAMILIES)
def steps(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Steps:
    folder = tmp_path_factory.mktemp("family")
    model = folder / request.param
    FAMILIES[request.param](model)
    both = {**UPDATES, **{f"{name}, saving": saving(setup, ALL_KEYS) for name, setup in ROWS.items()}}
    if request.param != TINY:
        both = {name: setup for name, setup in both.items() if name not in UPDATES or name == "one update"}
    alone = {f"{name}, alone": ROWS[name]._replace(alone=True) for name in ("all weights", "adapters")}
    two = {name: ROWS[name] for name in ("all weights", "adapters")}
    if request.param == TINY:
        two |= {name: saving(ROWS["all weights"], keys) for name, keys in KEYS.items()}
    return Steps(request.param, steps_of(model, 1, folder, both | ROWS | alone), steps_of(model, 2, folder, both | two))


of_tiny = pytest.mark.parametrize("steps", [TINY], indirect=True)


def assert_same_gradients(made: dict[str, Any], wanted: dict[str, Any], rel: float, smallest: float = 0.0) -> None:
    assert made["gradients"].keys() == wanted["gradients"].keys()
    for name, gradient in wanted["gradients"].items():
        assert (made["gradients"][name] - gradient).norm() <= rel * gradient.norm() + smallest, name


def assert_same_figures(made: dict[str, Any], wanted: dict[str, Any]) -> None:
    for name in wanted["figures"].keys() - COUNTED_BY_RANK:
        assert made["figures"][name] == pytest.approx(wanted["figures"][name], rel=1e-4, abs=1e-6), name


def test_two_ranks_give_the_gradients_and_weights_of_one(steps):
    one, two = steps.one["one update"], steps.two["one update"]
    assert {name.split(".")[2] for name in one["gradients"] if name.startswith("policy.model.")} >= {
        "qwen2_5_vl": {"visual", "language_model"},
        "qwen3_vl": {"visual", "language_model"},
        "idefics3": {"vision_model", "connector", "text_model"},
    }[steps.family]
    assert_same_gradients(two, one, 1e-4, 1e-7)
    for name, weight in one["weights"].items():
        off = (two["weights"][name] - weight).abs()
        assert (off > 1e-5).float().mean() < 1e-3, name


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("setup", ["all weights", "adapters"])
def test_rows_of_steps_give_the_gradients_of_steps_alone(steps, setup, ranks):
    """With KL to a reference, imitation and entropy bonus, by one rank and by two."""
    alone, together = steps.one[f"{setup}, alone"], (steps.one if ranks == 1 else steps.two)[setup]
    assert_same_gradients(together, alone, 1e-5, 1e-8)
    assert_same_figures(together, alone)
    assert together["figures"]["rows"] < 0.5 * alone["figures"]["rows"]
    assert together["figures"]["tokens_computed"] < 0.65 * alone["figures"]["tokens_computed"]


def assert_same_step(made: dict[str, Any], plain: dict[str, Any]) -> None:
    assert_same_gradients(made, plain, 1e-5, 1e-8)
    assert_same_figures(made, plain)
    assert made["probe"] == pytest.approx(plain["probe"], abs=1e-5)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("setup", ROWS)
def test_a_step_that_saves_memory_is_the_step_that_does_not(steps, setup, ranks):
    assert_same_step((steps.one if ranks == 1 else steps.two)[f"{setup}, saving"], steps.one[setup])


@of_tiny
@pytest.mark.parametrize("keys", KEYS)
def test_each_key_alone_leaves_the_step(steps, keys):
    assert_same_step(steps.two[keys], steps.one["all weights"])


@of_tiny
@pytest.mark.parametrize("setup", UPDATES)
def test_two_ranks_train_and_publish_what_one_does(steps, setup):
    """Minibatches are of the same sequences, though the ranks share them otherwise."""
    results = one, two = steps.one[setup], steps.two[setup]
    assert one["updates"] == two["updates"] == UPDATES[setup].minibatches
    assert_same_gradients(two, one, 1e-4)
    assert_same_figures(two, one)
    shares = [sorted(token["gradient_share"] for token in result["top_tokens"])[-5:] for result in results]
    assert shares[0] == pytest.approx(shares[1], rel=1e-3)
    assert shares[0][-1] > 0, "whichever rank had it"
    for name, weight in one["weights"].items():
        torch.testing.assert_close(two["weights"][name], weight, rtol=0, atol=1e-5)
    assert two["probe"] == pytest.approx(one["probe"], abs=1e-4)


@of_tiny
@pytest.mark.parametrize("setup", ["one update of adapters", "minibatches of adapters"])
def test_what_ranks_publish_is_their_adapter_merged(steps, setup):
    for result in (steps.one[setup], steps.two[setup]):
        assert all(".lora_" in name for name in result["gradients"])
        adapter = result["adapter"]
        worker = adapters.with_adapter(adapter["base"], adapter["tensors"], adapter["scaling"])
        assert weights.digest_tensors(worker) == weights.digest_tensors(result["published"])
        assert weights.digest_tensors(worker) != weights.digest_tensors(adapter["base"])


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
