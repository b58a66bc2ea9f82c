"""A trainer whose weights stop being finite: nothing of them is kept or published, and no group is lost silently."""

import functools
import threading
from collections.abc import Callable

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from dart_streams.config import parse
from dart_streams.errors import UserError
from dart_streams.policy import tiny, weights
from tests.model.test_trainer_run import Run
from trainer import main, refusals
from trainer.data.batch_builder import Batch
from trainer.data.consumer import Position
from trainer.learning.learner import StepResult
from trainer.loop import MAX_SKIPPED, Loop
from trainer.ranks import Ranks
from trainer.refusals import MAX_REFUSALS, RefusedStep, RefusedSteps, TrainingDiverged, VersionRefused
from trainer.state import TrainerState

FAR = 1e37
"""A learning rate whose first step makes weights that are finite, and log-probabilities that are not."""


@pytest.fixture
def run(new_run: Callable[..., Run]) -> Callable[..., Run]:
    return functools.partial(new_run, max_train_steps=3)


def test_non_finite_weights_are_refused_under_the_same_settings_only(run):
    ours = run(3)
    for number, error in enumerate([*[VersionRefused] * (MAX_REFUSALS - 1), TrainingDiverged, TrainingDiverged]):
        with pytest.raises(
            error, match=r"step 1 made weights that are not finite: .*largest weight is .*e\+37, in \S+"
        ) as said:
            ours.train(learning_rate=FAR)
        if error is VersionRefused:
            assert f"without the step's groups (group-{number})" in str(said.value)
    checkpoints = ours.config.run.folder / "checkpoints"
    assert [place.name for place in checkpoints.iterdir()] == [refusals.FILE]
    assert {event.version for event in ours.versions()} == {0}
    assert len({event.sha256 for event in ours.versions()}) == 1
    assert ours.trained() == []
    assert ours.train() == 0
    assert [row["group_ids"] for row in ours.trained()] == [["group-0"], ["group-1"], ["group-2"]]


def test_the_groups_of_a_refused_step_are_left_out_and_counted(run):
    ours = run(3, max_train_steps=2)
    file = ours.config.run.folder / "checkpoints" / refusals.FILE
    refused = RefusedStep(train_step=2, group_ids=("group-1",), fault="layer has nan")
    RefusedSteps(settings=refusals.settings_digest(ours.config)).after(refused).write(file)
    assert ours.train() == 0
    rows = ours.trained()
    assert [row["group_ids"] for row in rows] == [["group-0"], ["group-2"]]
    assert [row["metrics"]["not_finite_groups"] for row in rows] == [0, 1]
    assert ours.versions()[-1].groups_consumed == 3, "dispatch does not wait for it"


def test_a_non_finite_model_is_refused_before_publishing(run, tmp_path):
    ours, folder = run(), tmp_path / "model"
    tiny.build(folder)
    tensors = load_file(folder / weights.FILE)
    name = next(name for name in tensors if name.endswith("mlp.down_proj.weight"))
    tensors[name].view(-1)[0] = float("nan")
    save_file(tensors, folder / weights.FILE, metadata=weights.FORMAT)
    with pytest.raises(
        UserError,
        match=rf"policy\.path: the model in {folder} has weights that are not finite: .*down_proj\.weight has",
    ):
        policy = msgspec.structs.replace(ours.config.policy, path=str(folder))
        main.run(msgspec.structs.replace(ours.config, policy=policy))
    assert ours.versions() == []


def test_too_many_non_finite_gradients_end_the_trainer():
    loop = Loop(
        parse({}),
        Ranks(0, 1, torch.device("cpu")),
        *[None] * 4,
        1,
        threading.Event(),
        RefusedSteps(settings=""),  # type: ignore[arg-type]
    )
    batch = Batch(position=Position(groups_consumed=1))
    for _ in range(MAX_SKIPPED - 1):
        assert loop._skip(TrainerState(), batch, StepResult(False, {}, 4, 1, 1.0, lost=1)).position == batch.position
        loop._skip(TrainerState(), batch, StepResult(False, {}, 0, 0, 0.0))
    with pytest.raises(TrainingDiverged, match=rf"{MAX_SKIPPED} consecutive batches had no finite gradient"):
        loop._skip(TrainerState(), batch, StepResult(False, {}, 4, 1, 1.0, lost=1))
