"""The critic on the real learner: values, credit, pretraining, ranks, restarts and repeated steps."""

import io
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText

from benchmarks.synthetic_groups import SMALL, Maker
from console.bundles import retrain
from console.lineage.lineage import READ
from console.runs.bundle import Bundle
from console.runs.run_log import read_log
from console.runs.run_state import RunState
from dart_recipes.ui_tars_2.rules import Settings
from dart_recipes.ui_tars_2.training import credit_tokens, policy_lambda
from dart_streams import crash_points
from dart_streams.config import Config, parse
from dart_streams.errors import UserError
from dart_streams.policy.rendering import Prompt, Renderer
from dart_streams.policy.weight_location import base_of
from tests.model import plain_transformers, two_ranks
from tests.model.forkserver import run_ranks
from tests.model.test_trainer_reproduce import recorded
from tests.model.test_trainer_run import Run, assert_same_weights, ended, training
from topics import training_metrics
from trainer.checkpoint import Checkpoints
from trainer.checkpoint_state import sharded_state
from trainer.data.samples import ReadyGroup
from trainer.hooks import Chain, bind_training
from trainer.learning import critic
from trainer.learning.learner import Learner, never_stop
from trainer.ranks import Ranks, join_job
from trainer.state import TrainerState

RECIPE = {"value_pretraining_steps": 2, "value_updates": 4, "value_learning_rate": 2.0}


def config_of(**trainer: Any) -> Config:
    """Return a configuration with the recipe."""
    return parse({"recipe": "ui-tars-2", "recipes": {"ui-tars-2": RECIPE}, "trainer": {"micro_batch": 3, **trainer}})


def learner_of(config: Config, policy: Path, renderer: Renderer, ranks: Ranks) -> Learner:
    """Return a learner with the recipe's critic."""
    return Learner(policy, renderer, config.trainer, ranks, rules=bind_training(config))


def groups_of(config: Config, renderer: Renderer, ranks: Ranks, count: int = 2) -> list[ReadyGroup]:
    """Return a rank's share of made-up groups of three actions, whose advantages are their rewards' in place."""
    maker = Maker(config, renderer, SMALL._replace(steps=3))
    return [two_ranks.ready(maker, index, ranks) for index in range(count)]


def plain_states(policy: Path, renderer: Renderer, group: ReadyGroup) -> dict[tuple[str, int], torch.Tensor]:
    """Return the last hidden states (A, D) before each answer token, by place, with one sequence a pass."""
    plain = AutoModelForImageTextToText.from_pretrained(policy).eval()
    found = {}
    for item in group.samples:
        shown = [Image.open(io.BytesIO(group.images[ref.sha256])).convert("RGB") for ref in item.images]
        prompt = Prompt(token_ids=item.prompt, images=item.images, sha="")
        inputs = plain_transformers.training_inputs(renderer, prompt, shown, item.answer)
        start = inputs.pop("answer_start")
        batch = {name: tensor[None] if tensor.dim() == 1 else tensor for name, tensor in inputs.items()}
        with torch.no_grad():
            hidden = plain(**batch, use_cache=False, output_hidden_states=True).hidden_states[-1]
        found[item.trajectory_id, item.step] = hidden[0, start - 1 : -1]
    return found


@pytest.mark.parametrize("chunk", [0, 5])
def test_each_token_has_the_credit_of_its_place_in_the_whole_trajectory(policy, renderer, ranks, chunk):
    """Against chains of states of plain transformers; steps of a trajectory are in several micro-batches."""
    config = config_of(micro_batch=2, head_tokens=chunk)
    learner = learner_of(config, policy, renderer, ranks)
    [group] = groups_of(config, renderer, ranks, 1)
    head = learner.critic
    with torch.no_grad():
        head.layer.weight.copy_(torch.linspace(-0.1, 0.1, head.layer.in_features)[None])
        head.layer.bias.fill_(0.3)
    pieces = learner.collator.pieces([group], 2, 10_000)
    batches = list(learner.collator.batches([group], pieces, len(pieces) + 1))
    assessed = head.assess(batches, [critic.score(learner.scorer, batch) for batch in batches])

    states = plain_states(policy, renderer, group)
    rewards = {item.trajectory_id: item.advantage for item in group.samples}
    expected: dict[tuple[str, int], torch.Tensor] = {}
    for trajectory in rewards:
        steps = sorted(place for place in states if place[0] == trajectory)
        with torch.no_grad():
            values = [head.layer(states[place]).squeeze(-1) for place in steps]
        credit = credit_tokens(Settings(), Chain(torch.cat(values).tolist(), rewards[trajectory]))
        advantage_T = torch.tensor(credit.advantages)
        expected |= dict(zip(steps, advantage_T.split([len(part) for part in values]), strict=True))
    assert len(batches) > 2 and len(expected) == len(group.samples)
    compared = 0
    for batch in assessed.batches:
        for place, advantage_A, mask_A in zip(batch.places, batch.advantage_B1, batch.mask_BA, strict=True):
            if mask_A.any():
                torch.testing.assert_close(advantage_A[mask_A], expected[place], rtol=1e-3, atol=1e-4)
                compared += int(mask_A.sum())
    assert compared == len(assessed.targets_N) == sum(len(item.answer) for item in group.samples)
    assert assessed.batches[-1].mask_BA.sum() == 0, "one without samples has nothing to learn"


def test_pretraining_lowers_the_value_loss_and_leaves_the_policy(policy, renderer, ranks):
    config = config_of()
    learner, groups = learner_of(config, policy, renderer, ranks), groups_of(config, renderer, ranks)
    before = {name: value.clone() for name, value in learner.weights().items()}
    steps = [learner.learn(groups, 0, never_stop, pretraining=True) for _ in range(6)]
    losses = [step.metrics["value_loss"] for step in steps]
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.7 * losses[0]
    tokens, squares = 0, 0.0
    for item in (item for group in groups for item in group.samples):
        tokens, squares = tokens + len(item.answer), squares + len(item.answer) * item.advantage**2
    assert losses[0] == pytest.approx(squares / tokens), "values begin at 0"
    assert steps[-1].metrics["explained_variance"] > 0
    assert all((step.updated, step.updates, step.lost) == (True, 0, 0) for step in steps)
    assert all(torch.equal(value, before[name]) for name, value in learner.weights().items())
    assert not [name for step in steps for name in step.metrics if training_metrics.find(name) is None]
    learned = learner.learn(groups, 6, never_stop)
    assert learned.updates == 1 and {"loss", "value_loss", "explained_variance"} <= learned.metrics.keys()
    assert any(not torch.equal(value, before[name]) for name, value in learner.weights().items())


def test_the_loss_of_a_step_is_that_of_its_tokens_advantages(policy, renderer, ranks):
    """A fresh critic has values of 0: an advantage is the reward, decayed by the tokens that follow."""
    config = config_of()
    groups = groups_of(config, renderer, ranks)
    learner = learner_of(config, policy, renderer, ranks)
    samples = [item for group in groups for item in group.samples]
    expected, tokens = 0.0, sum(len(item.answer) for item in samples)
    for trajectory in {item.trajectory_id for item in samples}:
        own = sorted((item for item in samples if item.trajectory_id == trajectory), key=lambda item: item.step)
        length = sum(len(item.answer) for item in own)
        decay_T = policy_lambda(Settings().alpha, length) ** torch.arange(length - 1.0, -1.0, -1.0)
        for item, decay_A in zip(own, decay_T.split([len(item.answer) for item in own]), strict=True):
            images = {sha256: data for group in groups for sha256, data in group.images.items()}
            [logp_A] = critic.score(learner.scorer, learner.collator.collate([item], images)).logp_BA
            weight_A = torch.exp(logp_A - torch.tensor(item.logprobs)).clamp(max=1.0)
            expected -= float((weight_A * item.advantage * decay_A).sum()) / tokens
    assert learner.learn(groups, 0, never_stop).metrics["loss"] == pytest.approx(expected, rel=1e-3, abs=1e-6)


def test_values_are_learned_once_a_step_of_several_updates(policy, renderer, ranks):
    config = config_of(minibatches=2, epochs=2)
    learner, groups = learner_of(config, policy, renderer, ranks), groups_of(config, renderer, ranks)
    made = learner.learn(groups, 0, never_stop)
    assert (made.updates, learner.critic.optimizer.state_dict()["state"][0]["step"]) == (4, RECIPE["value_updates"])


def steps_on(job: Mapping[str, str], policy: Path, result: Path) -> None:
    """Be a rank: make a step of pretraining and a whole one; write what is learned."""
    two_ranks.os.environ.update(job)
    config = config_of()
    with join_job() as ranks:
        renderer = Renderer(policy, config.policy.min_pixels, config.policy.max_pixels)
        learner = learner_of(config, policy, renderer, ranks)
        groups = groups_of(config, renderer, ranks, 3)
        metrics = [learner.learn(groups, number, never_stop, (), number == 0).metrics for number in range(2)]
        weights = dict(learner.weights())
        checkpoints = Checkpoints(result.with_name(f"checkpoints-{ranks.count}"), ranks, critic=learner.critic)
        checkpoints.save(learner.scorer, learner.optimizer, TrainerState(version=2, train_step=2), 1)
        learned = {"metrics": metrics, "weights": weights, "head": head_of(learner)}
        torch.save(learned, result.with_suffix(f".{ranks.rank}"))


def head_of(learner: Learner) -> dict[str, torch.Tensor]:
    """Return the head, and what its optimizer remembers."""
    moments = learner.critic.optimizer.state_dict()["state"]
    return dict(learner.critic.layer.state_dict()) | {
        f"{name} of {number}": value for number, values in moments.items() for name, value in values.items()
    }


def test_two_ranks_learn_the_values_of_one_which_reads_their_checkpoint(policy, renderer, tmp_path):
    for count in (1, 2):
        run_ranks(count, steps_on, policy, tmp_path / f"of-{count}", limit_s=500)
    one, first, second = (torch.load(tmp_path / name) for name in ("of-1.0", "of-2.0", "of-2.1"))
    for name, value in first["head"].items():
        assert torch.equal(value, second["head"][name]), "equal on all ranks"
        torch.testing.assert_close(value, one["head"][name], rtol=1e-3, atol=1e-5)
    for own, other in zip(one["metrics"], first["metrics"], strict=True):
        for name in own.keys() - two_ranks.COUNTED_BY_RANK:
            assert other[name] == pytest.approx(own[name], rel=1e-3, abs=1e-5), name
    for name, value in one["weights"].items():
        torch.testing.assert_close(first["weights"][name], value, rtol=0, atol=1e-5)
    with join_job() as alone:
        learner = learner_of(config_of(), policy, renderer, alone)
        checkpoints = Checkpoints(tmp_path / "checkpoints-2", alone, critic=learner.critic)
        assert checkpoints.restore(learner.scorer, learner.optimizer).train_step == 2
        restored = head_of(learner)
    assert restored.keys() == first["head"].keys() and len(restored) == 2 + 2 * 3
    assert all(torch.equal(value, first["head"][name]) for name, value in restored.items())


def test_a_checkpoint_before_the_policys_first_update_changes_nothing(policy, renderer, ranks):
    config = config_of()
    learners = [learner_of(config, policy, renderer, ranks) for _ in range(2)]
    sharded_state(learners[0].scorer, learners[0].optimizer)
    groups = groups_of(config, renderer, ranks)
    saved, other = [learner.learn(groups, 0, never_stop) and learner.weights() for learner in learners]
    assert all(torch.equal(value, other[name]) for name, value in saved.items())


def test_a_killed_trainer_ends_with_the_critic_of_an_undisturbed_one(services, policy):
    """Killed after the checkpoint of a step of pretraining: the policy's first update is one of a fresh optimizer."""
    trainer = {"groups_per_step": 1, "micro_batch": 4, "max_train_steps": 4}
    runs = []
    for _ in range(2):
        tables = {"recipe": ["ui-tars-2"], "recipes": {"ui-tars-2": RECIPE}, "policy": {"path": str(policy)}}
        runs.append(Run(services.config(**tables, trainer=trainer, curation={"max_staleness": 100})))
        runs[-1].fill(4)
    alone, killed = runs
    assert alone.train() == 0
    with training(killed.config, f"{crash_points.AFTER_CHECKPOINT}:2") as process:
        assert ended(process) == -signal.SIGKILL
    assert killed.train() == 0
    names = ("value_loss", "explained_variance", "entropy", "loss")
    for row, expected in zip(killed.trained(), alone.trained(), strict=True):
        assert {name: row["metrics"].get(name) for name in names} == pytest.approx(
            {name: expected["metrics"].get(name) for name in names}, abs=1e-5
        )
    assert_same_weights(killed, alone, atol=1e-5)
    versions = {version.version: version.sha256 for version in alone.versions()}
    assert versions[0] == versions[1] == versions[2] != versions[3]


def test_steps_with_a_critic_come_again(services, policy, tmp_path):
    trainer = {"keep_versions": 4}
    recipe = {"recipe": ["ui-tars-2"], "recipes": {"ui-tars-2": {**RECIPE, "value_pretraining_steps": 1}}}
    config, path = recorded(services, policy, tmp_path, trainer, **recipe)
    steps = RunState().fold(read_log(Bundle(path), READ)).trained
    again = retrain.run(path, 3, None, base_of(config))
    assert [step.train_step for step in again] == [1, 2, 3]
    assert all(step.equal and step.refused == 0 for step in again), again
    assert again[0].recorded_loss == steps[1].metrics["value_loss"] and "loss" not in steps[1].metrics
    assert again[2].recorded_loss == steps[3].metrics["loss"]
    with pytest.raises(UserError, match="needs the critic of the steps before"):
        retrain.run(path, 1, 2, base_of(config))
