"""Recipes in the circle of the benchmark of learning, on recorded screens."""

from pathlib import Path

import pytest
import torch

from benchmarks.learning import policy, variants
from benchmarks.learning.circle import LearningCircle
from dart_streams.config import parse
from dart_streams.config.recipes import override_tables
from dart_streams.episodes.trajectory_summary import summarize
from tests.model.breadth.test_learning_benchmark import CONFIG, RECORDING, SETTINGS, TASKS, weights_of
from trainer.data.batch_builder import tokens_of
from trainer.data.samples import ReadyGroup


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return policy.warm_policy(CONFIG, TASKS, RECORDING, tmp_path_factory.mktemp("policies"))


def test_a_step_takes_the_tokens_of_its_recipe(warm):
    chosen = {"recipe": ["ring-lite"], "recipes": {"ring-lite": {"tokens_per_step": 60}}}
    tables = override_tables(SETTINGS, chosen | {"curation": {"pool": {"enabled": True}}})
    circle = LearningCircle(parse(tables), TASKS, RECORDING, warm, 0)
    sizes: list[int] = []
    learn = circle.learner.learn
    circle.learner.learn = lambda groups, *rest: sizes.append(tokens_of(groups)) or learn(groups, *rest)  # type: ignore
    circle.run(96)
    assert sizes and all(size < 60 + 30 for size in sizes), sizes


def test_the_first_steps_of_a_critic_leave_the_policy(warm):
    critic = {"value_pretraining_steps": 2, "value_updates": 4}
    tables = override_tables(SETTINGS, {"recipe": ["ui-tars-2"], "recipes": {"ui-tars-2": critic}})
    circle = LearningCircle(parse(tables), TASKS, RECORDING, warm, 0)
    weights = [weights_of(circle)]
    while circle.policy.version < 3:
        circle.run(circle.episodes + 8)
        weights += [weights_of(circle)] * (circle.policy.version - len(weights) + 1)
    assert ["loss" in step for step in circle.metrics[:3]] == [False, False, True]
    assert all(step["value_loss"] > 0 for step in circle.metrics)
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[-1])


def test_recorded_steps_are_in_prompts_and_never_in_samples(warm, monkeypatch):
    tables = override_tables(SETTINGS, {"recipe": ["ui-s1"], "recipes": {"ui-s1": {"bound": 2}}})
    circle = LearningCircle(parse(variants.merge_tables(tables, SETTINGS)), TASKS, RECORDING, warm, 0)
    read: list[ReadyGroup] = []
    learn = circle.learner.learn
    monkeypatch.setattr(circle.learner, "learn", lambda groups, *rest: read.extend(groups) or learn(groups, *rest))
    circle.run(96)
    assert circle.policy.version >= 1
    assert not any(group.refused for group in read), "prompts with recorded answers are rendered alike"
    stored = {name: summarize(steps) for name, steps in circle.screens.observations.items()}
    samples = [sample for group in read for sample in group.samples]
    recorded = [stored[sample.trajectory_id].recorded_steps for sample in samples]
    assert not any(sample.step in steps for sample, steps in zip(samples, recorded, strict=True))
    after = [steps for sample, steps in zip(samples, recorded, strict=True) if min(steps, default=9) < sample.step]
    assert after, "a step after a recorded one is trained on"
    assert all(step["mismatch"] < 1e-3 for step in circle.metrics if step["same_version_tokens"])
