"""Recorded optimizer steps are made again from a bundle alone, with the loss that was recorded."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from console.bundles import capture
from console.bundles import retrain as reproduce
from console.cli import main as command_line
from console.lineage.lineage import READ
from console.runs.bundle import Bundle
from console.runs.run_log import read_log
from console.runs.run_state import RunState
from dart_streams.config import Config
from dart_streams.errors import UserError
from dart_streams.policy.weight_location import base_of
from dart_streams.store import SyncStore, connect
from tests.model.test_trainer_run import Run
from topics import ALL, observations
from trainer import main

TASKS = Path(__file__).parents[2] / "deploy" / "config" / "tasks.toml"
STEPS = 3


@pytest.fixture(scope="module")
def run(services: Any, policy: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, Path]:
    """A run of three steps of two updates that is over, and its bundle."""
    return recorded(services, policy, tmp_path_factory.mktemp("bundle"), {"minibatches": 2})


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
