"""Records on ``weights`` that no trainer has written: those far ahead count for nobody, others are passed."""

import contextlib
from pathlib import Path
from typing import Any

import pytest

from dart_streams.bus import sync_clients
from dart_streams.bus.codec import encode
from dart_streams.policy import tiny
from tests.model.test_trainer_run import Run, ended, training, until
from topics import weights
from topics.transitions import WeightState
from topics.weights import WeightVersion


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy") / "tiny"
    tiny.build(folder)
    return folder


@pytest.fixture
def run(services: Any, model: Path) -> Run:
    trainer = {"groups_per_step": 1, "micro_batch": 4}
    return Run(services.config(policy={"path": str(model)}, trainer=trainer, curation={"max_staleness": 10**9}))


def announce(ours: Run, version: int, epoch: int, groups_consumed: int = 0) -> None:
    """Write a record as a program would that is no trainer of this run."""
    event = WeightVersion(
        model_id=ours.config.policy.model_id,
        version=version,
        uri="elsewhere",
        sha256="0" * 64,
        train_step=version,
        epoch=epoch,
        groups_consumed=groups_consumed,
    )
    record = encode(weights.TOPIC, event)
    with contextlib.closing(sync_clients.producer(ours.config.bus, "stranger")) as producer:
        ours.send(producer, weights.TOPIC, record.key, record.value, record.headers)


def newest(ours: Run) -> WeightVersion:
    """Return what a rollout worker takes for the newest version."""
    state = WeightState(model_id=ours.config.policy.model_id)
    for event in ours.versions():
        state = state.accept(event)
    assert state.newest is not None
    return state.newest


def test_a_record_far_ahead_changes_nothing_and_one_that_readers_take_is_passed_by_the_trainer_that_starts_next(
    run: Run, tmp_path: Path
) -> None:
    errors = tmp_path / "errors"
    with training(run.config, errors=errors) as trainer:
        until(run.versions, "version 0")
        announce(run, 1, 10**9)
        announce(run, 10**9, 1)
        run.add([run.maker.group(0)])
        until(lambda: newest(run).version == 1, "version 1")
        announce(run, 7, 5)
        assert ended(trainer) == 1, "started again, it goes on beyond that"
    said = errors.read_text()
    assert "has version 7 of epoch 5 at 'elsewhere', which no trainer of this run has published" in said
    assert "weights record ignored" in said
    assert "Traceback" not in said
    run.add([run.maker.group(1)])
    with training(run.config) as trainer:
        until(lambda: newest(run).version == 9, "the second step")
        announce(run, 20, 6)
        assert ended(trainer) == 1, "of its own epoch, but none of its versions"
    found = [(event.epoch, event.version) for event in run.versions()]
    assert found == [(1, 0), (10**9, 1), (1, 10**9), (1, 1), (5, 7), (6, 8), (6, 9), (6, 20)]
    with training(run.config) as trainer:
        until(lambda: newest(run).version == 21, "the weights of the second step again")
        announce(run, 21, 7, groups_consumed=10**12)
        assert ended(trainer) == 1, "dispatch would count all groups as consumed"
    assert run.train(max_train_steps=2) == 0
    assert (newest(run).epoch, newest(run).version, newest(run).groups_consumed) == (8, 22, 2)
    assert [row["group_ids"] for row in run.trained()] == [["group-0"], ["group-1"]]
