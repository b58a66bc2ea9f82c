"""Trainers of several ranks: killed anywhere, resumed with as many ranks or another number, and on a full disk."""

import contextlib
import datetime
import functools
import os
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from dart_streams import crash_points
from tests.faults import disk
from tests.model import sharded_layer
from tests.model.forkserver import jobs, run_ranks
from tests.model.sharded_layer import Task, resumed, two_steps
from tests.model.test_trainer_run import Run, assert_same_weights, ended, training
from trainer import checkpoint_manifest
from trainer import ranks as ranks_module
from trainer.checkpoint import Checkpoints
from trainer.checkpoint_manifest import CheckpointFile
from trainer.ranks import join_job

KILLS = [
    *((crash_points.IN_CHECKPOINT, 2), (crash_points.AFTER_CHECKPOINT, 1), (crash_points.AFTER_FILES, 2)),
    *((crash_points.AFTER_STEP, 2), (crash_points.BEFORE_EVENT, 1), (crash_points.AFTER_EVENT, 2)),
    (crash_points.BEFORE_STEP, 2),
]
"""Each point with the number of ranks that is killed there."""
if "DART_SLOW_TESTS" not in os.environ:
    KILLS = KILLS[:3]
STEPS = 8


@pytest.fixture
def run(new_run: Callable[..., Run]) -> Callable[..., Run]:
    return functools.partial(new_run, max_train_steps=STEPS)


@pytest.mark.timeout(1800)
def test_one_or_two_ranks_killed_anywhere_end_as_undisturbed(run):
    alone, killed = run(STEPS), run(STEPS)
    assert alone.train() == 0
    folder = killed.config.run.folder / "checkpoints"
    for point, count in KILLS:
        with contextlib.ExitStack() as life:
            first, *_ = [life.enter_context(training(killed.config, f"{point}:1", job=job)) for job in jobs(count)]
            assert ended(first) == -signal.SIGKILL, point
        assert len(list(folder.glob(".*"))) == (point == crash_points.IN_CHECKPOINT), "the next trainer removes it"
    with contextlib.ExitStack() as life:
        ranks = [life.enter_context(training(killed.config, job=job)) for job in jobs(2)]
        assert [ended(rank) for rank in ranks] == [0, 0]

    assert [row["group_ids"] for row in killed.trained()] == [[f"group-{index}"] for index in range(STEPS)]
    losses, expected = ([row["metrics"]["loss"] for row in ours.trained()] for ours in (killed, alone))
    assert losses == pytest.approx(expected, abs=1e-4)
    assert_same_weights(killed, alone, atol=1e-4)
    for place in folder.iterdir():
        manifest = checkpoint_manifest.read(place)
        assert isinstance(manifest, checkpoint_manifest.CheckpointManifest)
        assert {file.name for file in manifest.files} >= {"__0_0.distcp", "__1_0.distcp"}
        assert not [damage for file in manifest.files if (damage := file.damage_in(place))]


def test_a_checkpoint_is_read_by_another_number_of_ranks(tmp_path):
    kinds = {sharded_layer.Layer: 1e-6, sharded_layer.EightBitLayer: 1e-2}

    def tasks(do: Callable[[sharded_layer.Layer], object], saved_by: int) -> list[Task]:
        return [Task(tmp_path / f"{kind.__name__}-of-{saved_by}", do, kind) for kind in kinds]

    ones = sharded_layer.results(1, tasks(two_steps, 1), tmp_path / "one")
    twos = sharded_layer.results(2, [*tasks(two_steps, 2), *tasks(resumed, 1)], tmp_path / "two")
    read = sharded_layer.results(1, tasks(resumed, 2), tmp_path / "read")
    for number, rounded in enumerate(kinds.values()):
        assert twos[len(kinds) + number] == [[2, pytest.approx(ones[number][0], rel=rounded)]] * 2
        assert read[number] == [[2, pytest.approx(twos[number][0], rel=rounded)]]


def test_a_torn_shard_makes_both_ranks_take_the_previous_checkpoint(tmp_path):
    folder = tmp_path / "checkpoints"
    sharded_layer.results(2, [Task(folder, two_steps)], tmp_path / "saved")
    shard = folder / "epoch-0001-step-00000002" / "__1_0.distcp"
    shard.write_bytes(shard.read_bytes()[:-1])
    [[first, second]] = sharded_layer.results(2, [Task(folder, resumed)], tmp_path / "result")
    assert first == second
    assert first[0] == 1
    assert sorted(place.name for place in folder.iterdir()) == [
        ".damaged-epoch-0001-step-00000002",
        "epoch-0001-step-00000001",
    ]


@pytest.mark.skipif(bool(disk.possible()), reason="mounting a small disk needs root")
def test_on_a_full_disk_all_ranks_say_so_and_leave_the_checkpoint_before(tmp_path):
    with disk.small_disk(tmp_path / "disk", 1) as place:
        task = Task(place / "checkpoints", sharded_layer.a_full_disk)
        [outcomes] = sharded_layer.results(2, [task], tmp_path / "result")
    for said, left, restored in outcomes:
        assert "epoch-0001-step-00000002 can't be written" in said
        assert "No space left" in said
        assert left == ["epoch-0001-step-00000001"]
        assert restored == 1


def test_ranks_that_share_no_folder_are_refused(tmp_path):
    place = tmp_path / "checkpoints"
    task = Task(place, sharded_layer.a_rank_without_the_folder)
    [refusals] = sharded_layer.results(2, [task], tmp_path / "result")
    assert all("check that all ranks share this folder" in str(said) for said in refusals)
    assert Checkpoints(place, None).complete() == []  # type: ignore[arg-type]


def exchange(job: Mapping[str, str], folder: Path) -> None:
    """Exchange values as a rank, while torch's pickling collectives are out of order."""
    os.environ.update(job)
    with join_job() as ranks, pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.distributed.distributed_c10d._object_to_tensor", None)
        own = [CheckpointFile(name=f"é{number}", size=2**40, sha256="") for number in range(2 * ranks.rank)]
        assert [file.name for file in ranks.gathered(own, CheckpointFile)] == ["é0", "é1"]
        assert ranks.gathered([2**64 - 1 - ranks.rank], int) == [2**64 - 1, 2**64 - 2]
        assert ranks.gathered([], str) == []
        for value, kind in (({"b", "a"}, set[str]), ("x" * 10**6, str), (b"\0", bytes), (None, int | None), ("", str)):
            assert ranks.from_first(value if ranks.first else None, kind) == value
        (folder / str(ranks.rank)).touch()


def work_alone(job: Mapping[str, str], folder: Path) -> None:
    """Wait as a rank for rank 0, which works for longer than a collective waits, and then fails."""
    os.environ.update(job)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks_module, "TIMEOUT", datetime.timedelta(seconds=6))
        patch.setattr(ranks_module, "BEAT_S", 1.0)
        with join_job() as ranks:
            with ranks.first_working():
                if ranks.first:
                    threading.Event().wait(9.0)  # The time is what is tested.
            with pytest.raises(OSError, match="full"), ranks.failing_together(), ranks.first_working():
                if ranks.first:
                    raise OSError("the disk is full")
            (folder / str(ranks.rank)).touch()


def test_ranks_wait_while_the_first_works_longer_than_a_collective_may(tmp_path):
    run_ranks(2, work_alone, tmp_path, limit_s=400)
    assert {file.name for file in tmp_path.iterdir()} == {"0", "1"}


def test_ranks_exchange_values_without_pickles(tmp_path):
    run_ranks(2, exchange, tmp_path, limit_s=400)
    assert {file.name for file in tmp_path.iterdir()} == {"0", "1"}
