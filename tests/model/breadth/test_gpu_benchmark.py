"""The GPU benchmark's tiny plans, on a CPU: the same code as at real sizes."""

import pytest

from benchmarks.gpu import models
from benchmarks.gpu.plans import DESKTOP, PLANS
from benchmarks.gpu.trainer import TrainerBenchmark
from dart_streams.deadline import Deadline
from dart_streams.policy.rendering import Renderer


@pytest.mark.parametrize(("plan", "kind"), [("tiny-lora", "adapter"), ("tiny-full", "delta")])
def test_a_plan_measures_steps_and_publishes_two_versions(ranks, tmp_path, plan, kind):
    found = list(TrainerBenchmark(PLANS[plan], tmp_path, ranks).measure(Deadline(600)))
    assert [figures["what"] for figures in found] == ["load", *["step"] * 4, *["snapshot", "publish"] * 2]
    assert found[0]["rows"] == {"extended": True, "masked": True}
    segments, alone, sliding, kept = found[1:5]
    assert segments["grad_norm"] == pytest.approx(alone["grad_norm"], rel=2e-3), "bfloat16"
    assert (segments["rows"], alone["rows"], sliding["rows"]) == (2, 8, 8)
    assert segments["tokens_computed"] < alone["tokens_computed"] / 2
    assert segments["images_encoded"] <= alone["images_encoded"]
    assert segments["estimate_of_batch"].keys() >= {"activations", "logits", "optimizer state (AdamW)"}
    assert kept["recompute"] is False
    full, part = (figures for figures in found if figures["what"] == "publish")
    assert (full["kind"], part["kind"]) == ("full", kind)
    assert 0 < part["bytes"] < full["bytes"] / 5


def test_steps_without_time_are_named(ranks, tmp_path):
    found = list(TrainerBenchmark(PLANS["tiny-lora"], tmp_path, ranks).measure(Deadline(0)))
    assert [figures.get("not run") for figures in found if figures["what"] == "step"] == ["no time was left"] * 4


@pytest.mark.parametrize(("name", "billions"), [("3b", 3.75), ("7b", 8.29)])
def test_models_have_the_size_and_the_image_tokens_of_the_real_ones(tmp_path, name, billions):
    models.write_folder(tmp_path / "model", models.MODELS[name], DESKTOP[0] * DESKTOP[1])
    assert models.model_shape(tmp_path / "model").parameters / 1e9 == pytest.approx(billions, abs=0.01)
    renderer = Renderer(tmp_path / "model", 3136, DESKTOP[0] * DESKTOP[1])
    assert renderer.expansion(*DESKTOP).count(renderer.image_token) == 2691
