"""Weights that are not finite are found wherever they are, and written nowhere."""

import math
import re

import pytest
import torch

from benchmarks.synthetic_groups import Maker
from dart_streams.config import parse
from dart_streams.policy import adapters, deltas, finite, weights
from dart_streams.policy.finite import NotFinite
from tests.model.test_trainer_step import ready
from trainer.data.batch_builder import Batch
from trainer.learning import lora, model
from trainer.learning.learner import Learner
from trainer.reporting import StepReporter, step_metrics

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("kind", ["full", "delta", "adapter"])
def test_files_with_such_a_value_are_not_written(tmp_path, value, dtype, kind):
    state = {"a": torch.ones(3, dtype=dtype), "b": torch.tensor([[1.0, value], [0.0, 2.0]], dtype=dtype)}
    with pytest.raises(NotFinite, match=rf"{tmp_path}/v1: b has (nan|-?inf) \({str(dtype)[6:]}\)"):
        weights.save(state, str(tmp_path / "v1"), kind=kind)
    assert not list(tmp_path.iterdir())


def test_integers_nothing_and_the_largest_numbers_are_finite():
    most = torch.finfo(torch.bfloat16).max
    state = {"i": torch.tensor([1]), "none": torch.ones(0), "most": torch.tensor([most, -most], dtype=torch.bfloat16)}
    assert finite.find_nonfinite(state.items()) == ""
    assert finite.largest_value(state.items()) == "3.39e+38, in most"


def test_a_delta_of_a_value_that_is_not_finite_is_not_written(tmp_path):
    before = {"a": torch.ones(100, dtype=torch.bfloat16)}
    after = {"a": before["a"].clone().index_fill_(0, torch.tensor([7]), NAN)}
    with pytest.raises(NotFinite, match="a:values has nan"):
        weights.save(deltas.diff_weights(before, after).tensors, str(tmp_path), kind="delta")


def largest_weight(learner: Learner, value: float) -> None:
    """Make one of the trained weights this large."""
    parameter = next(one for one in learner.scorer.parameters() if one.requires_grad)
    lora.local_shard(parameter).view(-1)[0] = value


def moment(learner: Learner, value: float) -> None:
    """Make one of the optimizer's second moments this large."""
    moments = next(iter(learner.optimizer.state.values()))
    lora.local_shard(moments["exp_avg_sq"]).view(-1)[0] = value


def all_weights(learner: Learner, value: float) -> None:
    """Make all of the trained weights this large."""
    for parameter in learner.scorer.parameters():
        if parameter.requires_grad:
            lora.local_shard(parameter).fill_(value)


@pytest.mark.parametrize(
    ("trainer", "spoil", "value", "said"),
    [
        ({}, largest_weight, NAN, r"visual\.\S+ has nan \(float32\)"),
        ({}, largest_weight, INF, r"visual\.\S+ has inf \(float32\)"),
        ({"publish": {"dtype": "bfloat16"}}, largest_weight, 3.4e38, r"visual\.\S+ has inf \(bfloat16\)"),
        ({}, moment, INF, r"exp_avg_sq of \S+ has inf \(float32\)"),
        ({}, all_weights, 1e38, r"a log-probability of the probe is nan; the largest weight is 1e\+38, in \w+"),
        ({"lora": {"rank": 2}}, largest_weight, NAN, r"has nan \(float32\)"),
        ({"lora": {"rank": 2}}, moment, NAN, r"exp_avg_sq of .*lora_A.* has nan"),
        ({"lora": {"rank": 2}, "publish": {"dtype": "bfloat16"}}, all_weights, 1e38, r"\.weight has (inf|nan) \(bfl"),
    ],
)
def test_what_is_not_finite_of_a_step_is_named(policy, renderer, ranks, trainer, spoil, value, said):
    config = parse({"trainer": {"micro_batch": 4, **trainer}})
    learner = Learner(policy, renderer, config.trainer, ranks)
    assert learner.learn([ready(Maker(config, renderer).group(0), renderer)], 0, lambda: False).updated
    assert learner.fault_of(learner.snapshot()) == ""
    model.reshard(learner.scorer)  # what is gathered for a pass is not what is trained
    with torch.no_grad():
        spoil(learner, value)
    fault = learner.fault_of(learner.snapshot())
    assert re.search(said, fault), fault


def test_lost_updates_are_counted_and_others_are_measured(policy, renderer, ranks):
    config = parse({"trainer": {"micro_batch": 4, "minibatches": 2}})
    learner = Learner(policy, renderer, config.trainer, ranks)
    group = ready(Maker(config, renderer).group(0), renderer)
    group.samples[0].logprobs[0] = NAN  # type: ignore[index]
    result = learner.learn([group], 0, lambda: False)
    assert (result.updated, result.updates, result.lost) == (True, 1, 1)
    assert all(math.isfinite(result.metrics[name]) for name in ("loss", "grad_norm", "mismatch", "entropy"))
    batch = Batch(groups=[group])
    metrics = step_metrics(batch, result, 0, {}, not_finite=3)
    assert (metrics["updates_not_finite"], metrics["not_finite_groups"]) == (1, 3)
    StepReporter().trained(1, 1, batch, metrics | {"publish_ms": 1.0, "checkpoint_ms": 1.0})


@pytest.mark.parametrize("left", ["mismatch", "same_version_mismatch", "loss", "train_ms", ""])
def test_a_step_is_reported_without_what_it_could_not_measure(left):
    batch = Batch()
    names = ("loss", "mismatch", "same_version_mismatch", "same_version_tokens", "train_ms", "publish_ms")
    StepReporter().trained(1, 1, batch, {name: 1.0 for name in names if name != left} if left else {})


def test_a_merged_matrix_beyond_its_type_is_found():
    base = {"a.weight": torch.full((2, 2), 3e38, dtype=torch.bfloat16)}
    adapter = {
        "base_model.model.a.lora_A.weight": torch.ones(1, 2),
        "base_model.model.a.lora_B.weight": torch.ones(2, 1),
    }
    merged = adapters.with_adapter(base, adapter, 1e38)
    assert "a.weight has inf (bfloat16)" in finite.find_nonfinite(merged.items())
