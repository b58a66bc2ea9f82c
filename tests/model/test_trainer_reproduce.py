"""Recorded optimizer steps are made again from a bundle alone, with the loss that was recorded."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dart_streams.config import Config
from dart_streams.console.bundles import capture
from dart_streams.console.bundles import retrain as reproduce
from dart_streams.console.cli import main as command_line
from dart_streams.console.lineage.lineage import READ
from dart_streams.console.runs.bundle import Bundle
from dart_streams.console.runs.run_log import read_log
from dart_streams.console.runs.run_state import RunState
from dart_streams.errors import UserError
from dart_streams.policy.weight_location import base_of
from dart_streams.store import SyncStore, connect
from tests.model.scripted_teacher import scripted_teacher
from tests.model.test_trainer_run import Run
from topics import ALL, observations
from topics.trained import TrainedStep
from trainer import main
from trainer.data.successes import RememberedSuccess

TASKS = Path(__file__).parents[2] / "deploy" / "config" / "tasks.toml"
STEPS = 3


@pytest.fixture(scope="module")
def run(services: Any, policy: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, Path]:
    """A run of three steps of two updates that is over, and its bundle."""
    return recorded(services, policy, tmp_path_factory.mktemp("bundle"), {"minibatches": 2})


@pytest.fixture(scope="module")
def remembering(services: Any, policy: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, Path]:
    """The same with imitation beside each batch and in phases, half of each step's trajectories replayed, the scores of
    a teacher that is away when steps are repeated, and with the versions of all steps."""
    trainer = {"keep_versions": STEPS + 1, "minibatches": 2, "imitate": {"trajectories": 2, "weight": 0.5}}
    recipes = {"computerrl": {"every": 2, "updates": 2, "trajectories": 1}, "mobilerl": {"gamma": 0.5}}
    folder = tmp_path_factory.mktemp("bundle")
    with scripted_teacher() as teacher:
        recipes["distillation"] = {"base_url": teacher.url, "model": "teacher"}
        return recorded(services, policy, folder, trainer, recipe=list(recipes), recipes=recipes)


def recorded(services: Any, policy: Path, folder: Path, trainer: dict[str, Any], **tables: Any) -> tuple[Config, Path]:
    config: Config = services.config(
        **tables,
        policy={"path": str(policy)},
        trainer={"groups_per_step": 2, "micro_batch": 4, "max_train_steps": STEPS, "keep_versions": 2, **trainer},
        curation={"max_staleness": 100},
        tasks={"file": str(TASKS)},
    )
    ours = Run(config)
    groups = [ours.maker.group(index) for index in range(2 * STEPS)]
    seen = [step for backlog in groups for steps in backlog.observations.values() for step in steps]
    ours.publish(observations.TOPIC, *seen)
    ours.add(groups)
    assert main.run(config) == 0
    path = folder / "run.dart"
    session = connect(config.store)
    capture.capture(config, path, ALL, SyncStore(session, config.bus.run, 16))
    session.cluster.shutdown()
    return config, path


def test_the_recorded_losses_come_again(run):
    config, path = run
    again = reproduce.run(path, STEPS, None, base_of(config))
    assert [step.train_step for step in again] == [3], "two versions are kept: v2, which step 3 started from, and v3"
    metrics = RunState().fold(read_log(Bundle(path), READ)).trained[3].metrics
    assert again[0].recorded_loss == metrics["first_loss"] != metrics["loss"], "the optimizer's state is not there"
    assert all(step.equal and step.refused == 0 for step in again), again
    result = CliRunner().invoke(
        command_line.build_app(["train"]),
        ["train", "--replay", str(path), "--from", "3", "--json", "--weights", base_of(config)],
    )
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)[0]["weights"] == "v2"


def test_steps_whose_weights_or_records_are_gone_or_elsewhere_are_refused(run, tmp_path, monkeypatch):
    config, path = run
    with pytest.raises(UserError, match=r"v0.*keep_versions"):
        reproduce.run(path, 1, 1, base_of(config))
    with pytest.raises(UserError, match="no train step 9: the bundle has 1 to 3"):
        reproduce.run(path, 1, 9, base_of(config))
    capture.capture(config, tmp_path / "bare.dart", ALL)
    assert not Bundle(tmp_path / "bare.dart").has("blobs")
    with pytest.raises(UserError, match="has no screenshots"):
        reproduce.run(tmp_path / "bare.dart", 1, 3, base_of(config))
    monkeypatch.setattr(reproduce.cpu_features, "limit_isa", lambda dtype, place: places.append(place))
    places: list[Path] = []
    for elsewhere in ("", "s3://bucket/of/mine"):
        with pytest.raises(UserError, match=r"if you trust that place, name .* with --weights"):
            reproduce.run(path, 1, None, elsewhere)
    assert places == [Path(".dart")] * 2, "the bundle's state folder is another machine's"


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
