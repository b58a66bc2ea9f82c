"""Records on ``weights`` that no trainer has written: those far ahead count for nobody, others are passed."""

import contextlib
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from dart_streams.config import parse
from tests import events
from tests.model.test_trainer_run import Run, ended, training, until
from topics import weights
from topics.transitions import WeightState
from topics.weights import WeightVersion
from trainer.data.consumer import CuratedConsumer, Overtaken, Position
from trainer.loop import Rank0Outputs
from trainer.publish import WeightPublisher


@pytest.fixture
def run(services: Any, policy: Path) -> Run:
    trainer = {"groups_per_step": 1, "micro_batch": 4}
    return Run(services.config(policy={"path": str(policy)}, trainer=trainer, curation={"max_staleness": 10**9}))


def announced(model_id: str, version: int, epoch: int, groups_consumed: int) -> WeightVersion:
    place = {"uri": "elsewhere", "groups_consumed": groups_consumed}
    return events.weight_version(version, model_id=model_id, epoch=epoch, **place)


def announce(ours: Run, version: int, epoch: int) -> None:
    """Write a record as a program would that is no trainer of this run."""
    ours.publish(weights.TOPIC, announced(ours.config.policy.model_id, version, epoch, 0))


def newest(ours: Run) -> WeightVersion:
    """Return what a rollout worker takes for the newest version."""
    state = WeightState(model_id=ours.config.policy.model_id)
    for event in ours.versions():
        state = state.accept(event)
    assert state.newest is not None
    return state.newest


def test_a_restarted_trainer_numbers_beyond_a_foreign_record(run, tmp_path):
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
    assert run.train(max_train_steps=2) == 0
    published = [(event.epoch, event.version) for event in run.versions()]
    assert published == [(1, 0), (10**9, 1), (1, 10**9), (1, 1), (5, 7), (6, 8), (6, 9)]
    assert [row["group_ids"] for row in run.trained()] == [["group-0"], ["group-1"]]


@pytest.mark.parametrize(
    ("version", "epoch", "groups_consumed", "is_own"),
    [(4, 2, 7, True), (4, 2, 6, True), (3, 2, 9, True), (5, 2, 7, False), (4, 2, 10**12, False), (5, 1, 7, True)],
)
def test_a_trainer_ends_at_a_foreign_version_that_readers_accept(version, epoch, groups_consumed, is_own):
    """One with more groups consumed would have dispatch count all groups as trained."""
    config = parse({"policy": {"model_id": "tiny"}})
    publisher = WeightPublisher(config, epoch=2)
    consumer = CuratedConsumer(config.bus, Position(), "tiny", 2, 1, lambda: 2)
    own = announced("tiny", 4, 2, 7)
    publisher._accept(own)
    consumer._ended = Future()
    for event in (own, announced("tiny", version, epoch, groups_consumed)):
        consumer._note_announced(event)
    outputs = Rank0Outputs(consumer, publisher, None, None)  # type: ignore[arg-type]
    with contextlib.nullcontext() if is_own else pytest.raises(Overtaken, match=f"version {version} of epoch {epoch}"):
        outputs.check_versions()
