"""Trainers killed or frozen at each of their crash points: nothing is lost, trained twice, or written over."""

import contextlib
import functools
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForImageTextToText

from console.repair import projection
from console.runs.run_log import LogRecord, RecordMetadata
from console.runs.run_state import RunState
from dart_streams import crash_points
from dart_streams.errors import UserError
from dart_streams.policy import exporting, resident_weights, weights
from dart_streams.policy.resident_weights import ResidentWeights
from tests.model.test_trainer_run import Run, assert_same_weights, ended, is_stopped, training, two_ranks, until
from topics.weights import WeightVersion

pytestmark = pytest.mark.timeout(1800)
REMEMBERING: dict[str, Any] = {
    "recipe": ["computerrl", "mobilerl"],
    "recipes": {
        "computerrl": {"every": 2, "updates": 2, "trajectories": 1},
        "mobilerl": {"gamma": 0.5, "kappa": 1, "buffer": 3},
    },
}
IMITATION = {"imitate": {"trajectories": 2, "weight": 0.5, "recent": 3}}
"""Each batch has two trajectories, one of them a success: with gamma 1/2 a step replays two others."""
STEPS = 8
ENTROPIES = ("sft_entropy_before", "sft_entropy_after")
MEASURED = ("loss", "grad_norm", "imitation_nll", "imitation_share", "sft_nll", "replay_share", *ENTROPIES)
WHOLE = "DART_SLOW_TESTS" in os.environ
PUBLISHING = (crash_points.IN_CHECKPOINT, crash_points.BEFORE_EVENT, crash_points.AFTER_FILES)
SECOND_PASS = [f"{point}:2" for point in (crash_points.TRAINER if WHOLE else PUBLISHING)]
SECOND_STEPS = 2 * len(SECOND_PASS) + 1
"""Of a run whose trainers end at a second pass: more than they make together."""
REPLACED = (crash_points.BEFORE_STEP, crash_points.AFTER_FILES)
THIRD_CHECKPOINTS = [
    *(f"{point}:4" for point in (crash_points.TRAINER if WHOLE else REPLACED) if point != crash_points.IN_CHECKPOINT),
    f"{crash_points.IN_CHECKPOINT}:1",
]
THIRD_STEPS = 3 * len(THIRD_CHECKPOINTS) + 2


@pytest.fixture(scope="module")
def remembering(services: Any, policy: Path) -> Callable[..., Run]:
    """Return a function that makes a run whose steps imitate, replay and end with phases."""

    def make(steps: int, **trainer: Any) -> Run:
        settings = {"groups_per_step": 1, "micro_batch": 4, "max_train_steps": steps, **IMITATION, **trainer}
        curation = {"max_staleness": 100}
        run = Run(services.config(policy={"path": str(policy)}, trainer=settings, curation=curation, **REMEMBERING))
        run.fill(steps)
        return run

    return make


@pytest.fixture(scope="module")
def undisturbed(remembering: Callable[..., Run]) -> Run:
    """Such a run that is over."""
    ours = remembering(STEPS)
    assert ours.train() == 0
    return ours


def test_a_step_imitates_past_successes(undisturbed):
    steps = undisturbed.steps()
    won = [f"trajectory-{index}-1" for index in range(STEPS)]
    assert [len(step.imitated) for step in steps] == [0, 0, *[2] * 6], "as soon as there are enough"
    assert [len(step.sft_updates) for step in steps] == [0, 1, 0, 2, 0, 2, 0, 2], "no more than there are successes"
    for number, step in enumerate(steps):
        assert set(step.imitated) <= set(won[max(0, number - 3) : number]), "the newest before this step"
        assert {identity for update in step.sft_updates for identity in update} <= set(won[:number])
    assert steps[1].sft_updates == [[won[0]]]
    assert "imitation_nll" not in steps[1].metrics
    assert steps[2].metrics["imitation_weight"] == 0.5
    assert 0 < steps[2].metrics["imitation_share"] < 1
    assert steps[2].metrics["imitation_nll"] > 0
    assert [step.metrics.get("sft_updates", 0) for step in steps] == [0, 1, 0, 2, 0, 2, 0, 2]
    entropies = [
        tuple(step.metrics[name] for name in ENTROPIES) if "sft_nll" in step.metrics else None for step in steps
    ]
    assert [found is not None for found in entropies] == [False, True] * 4
    assert all(min(found) > 0 and found[0] != found[1] for found in entropies if found), "the phase has an effect"


def test_a_step_replays_successes_of_earlier_batches(undisturbed):
    steps = undisturbed.steps()
    won = [f"trajectory-{index}-1" for index in range(STEPS)]
    assert [len(step.replayed) for step in steps] == [0, 1, *[2] * 6]
    for number, step in enumerate(steps):
        assert set(step.replayed) <= set(won[max(0, number - 3) : number]), "the newest before this step"
        assert (step.group_ids, len(step.trajectory_ids)) == ([f"group-{number}"], 2), "nothing counts twice"
    assert "replay_share" not in steps[0].metrics
    assert [step.metrics["replay_share"] for step in steps[1:]] == [pytest.approx(1 / 3), *[0.5] * 6]
    assert all(0 < step.metrics["replayed_sequences"] < step.metrics["sequences"] for step in steps[1:])


def test_each_version_takes_a_whole_batch_with_or_without_a_phase(undisturbed):
    """Dispatch counts groups to bound staleness in versions: one made from no groups would make every rollout older."""
    versions = [(event.version, event.groups_consumed) for event in undisturbed.versions()]
    assert versions == [(number, number) for number in range(STEPS + 1)]


def test_two_ranks_imitate_and_replay_what_one_does(remembering, undisturbed):
    two = remembering(4, processes=2)
    with two_ranks(two.config):
        until(lambda: len(two.steps()) == 4, "four steps")
    compare(two, undisturbed, rel=1e-3)


def compare(ours: Run, expected: Run, rel: float = 0.0) -> None:
    """Check the steps of a run against those of an undisturbed one of as many steps or more."""
    for step, wanted in zip(ours.steps(), expected.steps(), strict=False):
        assert step.group_ids == wanted.group_ids
        assert (step.imitated, step.sft_updates, step.replayed) == (
            wanted.imitated,
            wanted.sft_updates,
            wanted.replayed,
        )
        found = {name: step.metrics.get(name, 0.0) for name in MEASURED}
        assert found == pytest.approx({name: wanted.metrics.get(name, 0.0) for name in MEASURED}, rel=rel, abs=1e-5)


def kill_at(ours: Run, points: Sequence[str]) -> None:
    """Start trainers that die at these points, one after the other, and then one that may end."""
    for point in points:
        with training(ours.config, point) as trainer:
            assert ended(trainer) == -signal.SIGKILL, point
        left = list((ours.config.run.folder / "checkpoints").glob(".partial-*"))
        assert len(left) == point.startswith(crash_points.IN_CHECKPOINT), "the next trainer removes it"
    assert ours.train() == 0


def assert_numbered(versions: Sequence[WeightVersion], steps: int) -> None:
    """A number means one set of weights, and each incarnation's numbers strictly increase."""
    announced = [(event.epoch, event.version) for event in versions]
    assert announced == sorted(set(announced))
    numbers = [event.version for event in versions]
    assert numbers == sorted(numbers)
    assert set(numbers) == set(range(steps + 1))
    assert len({(event.version, event.sha256) for event in versions}) == steps + 1


def test_a_killed_trainer_learns_what_an_undisturbed_one_learns(remembering, undisturbed):
    """Killed at the first pass of each point: before a step, or as it publishes again what it found."""
    ours = remembering(STEPS)
    kill_at(ours, [f"{point}:1" for point in reversed(crash_points.TRAINER)])
    assert len(ours.steps()) == STEPS
    compare(ours, undisturbed)
    assert [row["group_ids"] for row in ours.trained()] == [[f"group-{number}"] for number in range(STEPS)]
    assert_numbered(ours.versions(), STEPS)
    assert_same_weights(ours, undisturbed, atol=1e-6)


def test_killed_anywhere_each_delta_is_the_trainers_to_the_bit(new_run, tmp_path):
    """Each start that finds its checkpoint's weights published says so by announcing the same version again."""
    publish = {"dtype": "bfloat16", "full_every": 4}
    ours = new_run(SECOND_STEPS, learning_rate=1e-6, publish=publish, max_train_steps=SECOND_STEPS, keep_versions=100)
    kill_at(ours, SECOND_PASS)
    last = ours.versions()[-1]
    assert ours.train() == 0
    versions = ours.versions()
    assert [row["group_ids"] for row in ours.trained()] == [[f"group-{number}"] for number in range(SECOND_STEPS)]
    assert (versions[-1].version, versions[-1].sha256) == (last.version, last.sha256)
    assert versions[-1].epoch == last.epoch + 1
    assert_numbered(versions, SECOND_STEPS)
    assert {"full", "delta"} == {version.kind for version in versions}
    follower = ResidentWeights(tmp_path / "follower")
    for version in versions:
        follower.advance(version)
        assert follower.sha256 == version.sha256
        late = resident_weights.materialize_weights(version, tmp_path / "late")
        assert weights.digest_file(late / weights.FILE) == version.sha256
    shares = [
        row["metrics"]["weights_changed_share"] for row in ours.trained() if "weights_changed_share" in row["metrics"]
    ]
    assert shares
    assert all(0 < share < 0.5 for share in shares)


def freeze_at(ours: Run, points: Sequence[str]) -> list[WeightVersion]:
    """Replace each trainer by the next once it has stopped at its point, train to the end, and wake them all.

    Each wakes at its worst moment, when others have made all steps; without mends it overwrites a row of theirs. Return
    the versions of before.
    """
    with contextlib.ExitStack() as life:
        frozen = []
        for point in points:
            frozen.append(life.enter_context(training(ours.config, f"{point}:{crash_points.STOP}")))
            until(functools.partial(is_stopped, frozen[-1]), f"the trainer at {point}")
        assert ours.train() == 0
        before, versions = ours.rows(), ours.versions()
        for point, trainer in zip(points, frozen, strict=True):
            os.kill(trainer.pid or 0, signal.SIGCONT)
            assert ended(trainer) == UserError.exit_code, point
            assert ours.rows() == before, point
    count = ours.config.trainer.max_train_steps
    rows = ours.trained()
    assert [(row["train_step"], row["group_ids"]) for row in rows] == [
        (number, [f"group-{number - 1}"]) for number in range(1, count + 1)
    ]
    assert rows[-1]["epoch"] == len(points) + 1
    state = RunState().fold(LogRecord(RecordMetadata("", 0, 0, 0), event, b"") for event in ours.log())
    assert {number: step.epoch for number, step in state.trained.items()} == {
        row["train_step"]: row["epoch"] for row in rows
    }
    assert state.versions[state.newest_version or 0].event.epoch == len(points) + 1
    projected = {row.key: row.values for row in projection.project_rows(ours.config.bus.run, ours.log())}
    assert projected == before
    return versions


def test_frozen_trainers_that_were_replaced_change_nothing(new_run, policy, tmp_path):
    """Each resumes from a checkpoint older than the newest version, and reuses no number; adapters are to the bit."""
    settings = {"learning_rate": 1e-3, "lora": {"rank": 4}, "max_train_steps": THIRD_STEPS, "keep_versions": 2}
    ours, alone = (new_run(THIRD_STEPS, checkpoint_every=steps, **settings) for steps in (3, 1))
    versions = freeze_at(ours, THIRD_CHECKPOINTS)
    made = {(event.version, event.uri) for event in versions}
    assert alone.train() == 0
    assert len({number for number, _ in made}) == len(made) > THIRD_STEPS + 1
    losses, expected = ([row["metrics"]["loss"] for row in run.trained()] for run in (ours, alone))
    assert losses == pytest.approx(expected, abs=1e-5)
    assert {version.kind for version in versions if version.version > 0} == {"adapter"}
    assert {version.base[0].uri for version in versions if version.base} == {versions[0].uri}, "one base for all"

    newest = versions[-1]
    whole = resident_weights.materialize_weights(newest, tmp_path / "whole")
    assert weights.digest_file(whole / weights.FILE) == newest.sha256
    exported = tmp_path / "exported"
    exporting.export(policy, newest, exported)
    served = ResidentWeights(tmp_path / "worker")
    served.advance(newest)
    assert weights.digest_tensors(weights.model_state(exported)) == served.sha256

    undisturbed = ResidentWeights(tmp_path / "undisturbed")
    undisturbed.advance(alone.versions()[-1])
    adapter = tmp_path / "adapter"
    exporting.export_adapter(policy, newest, adapter)
    plain = AutoModelForImageTextToText.from_pretrained(policy, dtype=torch.float32)
    merged: Any = PeftModel.from_pretrained(plain, adapter).merge_and_unload()
    for name, value in weights.own_state(merged).items():
        torch.testing.assert_close(value, served.tensors[name], rtol=0, atol=1e-6)
        torch.testing.assert_close(undisturbed.tensors[name], served.tensors[name], rtol=0, atol=1e-6)
    with pytest.raises(UserError, match=r"version 0 .*whole.*trainer\.lora\.rank"):
        exporting.export_adapter(policy, versions[0], tmp_path / "none")
