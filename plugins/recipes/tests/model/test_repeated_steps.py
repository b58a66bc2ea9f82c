"""Steps of recorded runs that imitated, replayed and were scored by a teacher are made again from a bundle alone."""

from pathlib import Path
from typing import Any

import pytest

from console.bundles import retrain as reproduce
from console.lineage.lineage import READ
from console.runs.bundle import Bundle
from console.runs.run_log import read_log
from console.runs.run_state import RunState
from dart_streams.config import Config
from dart_streams.policy.weight_location import base_of
from plugins.recipes.tests.model.scripted_teacher import scripted_teacher
from tests.model.test_trainer_reproduce import STEPS, recorded
from topics.trained import TrainedStep
from trainer.data.successes import RememberedSuccess


@pytest.fixture(scope="module")
def remembering(services: Any, policy: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, Path]:
    """A run that is over, and its bundle, with the versions of all steps.

    It imitates beside each batch and in phases, and half of each step's trajectories are replayed. The teacher of its
    scores is away when steps are repeated.
    """
    trainer = {"keep_versions": STEPS + 1, "minibatches": 2, "imitate": {"trajectories": 2, "weight": 0.5}}
    recipes = {"computerrl": {"every": 2, "updates": 2, "trajectories": 1}, "mobilerl": {"gamma": 0.5}}
    folder = tmp_path_factory.mktemp("bundle")
    with scripted_teacher() as teacher:
        recipes["distillation"] = {"base_url": teacher.url, "model": "teacher"}
        return recorded(services, policy, folder, trainer, recipe=list(recipes), recipes=recipes)


def test_what_a_step_imitated_replayed_and_was_scored_comes_again(remembering, monkeypatch):
    config, path = remembering
    steps = RunState(keep_steps=True).fold(read_log(Bundle(path), READ)).trained
    assert [bool(steps[number].imitated) for number in (1, 2, 3)] == [False, True, True]
    assert [len(steps[number].sft_updates) for number in (1, 2, 3)] == [0, 2, 0]
    assert [len(steps[number].replayed) for number in (1, 2, 3)] == [0, 2, 4]
    refs = [steps[number].scores for number in (1, 2, 3)]
    assert all(refs) and len({ref.sha256 for ref in refs}) == STEPS
    assert all(steps[number].metrics["loss_terms"] for number in (1, 2, 3))
    again = reproduce.run(path, STEPS, None, base_of(config))
    assert [step.train_step for step in again] == [1, 2, 3]
    assert all(step.equal and step.refused == 0 for step in again), again
    monkeypatch.setattr(reproduce, "restore_scores", lambda group, data: group)
    assert not reproduce.run(path, 1, 2, base_of(config))[0].equal, "without them its loss differs"


def test_a_step_made_again_imitates_or_its_losses_differ(remembering, monkeypatch):
    """Guards the test above: with another success imitated, the recorded likelihood does not come again."""
    config, path = remembering
    state = RunState(keep_steps=True).fold(read_log(Bundle(path), READ))
    other = next(name for name in state.groups_of if name.endswith("-1") and name not in state.trained[2].imitated)

    def exchanged(state: RunState, step: TrainedStep, trajectory_id: str) -> RememberedSuccess:
        return original(state, step, other if trajectory_id == step.imitated[0] else trajectory_id)

    original = reproduce.success_of
    monkeypatch.setattr(reproduce, "success_of", exchanged)
    [step] = reproduce.run(path, 1, 2, base_of(config))
    assert not step.equal
