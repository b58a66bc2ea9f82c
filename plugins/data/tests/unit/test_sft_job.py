"""A fine-tuning is continued with the same data and settings; memory and ranks may change after a failure."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from dart_data.sft.job import CHECKPOINTS, DataFacts, SftJob, lock_folder, work_folder, write_job
from dart_streams.config import parse
from dart_streams.errors import UserError


def job(folder: Path, sha256: str = "a", model: str = "/m", **trainer: Any) -> SftJob:
    data = DataFacts(path="set.jsonl", sha256=sha256, trajectories=1, answers=1, unusable=[])
    return SftJob(config=parse({"trainer": trainer}), model=model, output=str(folder / "out"), data=data)


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """A fine-tuning with checkpoints."""
    (work_folder(tmp_path / "out") / CHECKPOINTS).mkdir(parents=True)
    write_job(job(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    "trainer", [{"processes": 2}, {"micro_batch_tokens": 512, "recompute": True}, {"sft": {"checkpoint_every": 7}}]
)
def test_ranks_and_memory_may_change(begun, trainer):
    write_job(job(begun, **trainer))


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"sha256": "b"}, "data"),
        ({"model": "/n"}, "model"),
        ({"sft": {"learning_rate": 1e-3}}, "settings"),
        ({"sha256": "b", "lora": {"rank": 4}}, "data and settings"),
    ],
)
def test_another_job_is_not_continued(begun, changed, what):
    with pytest.raises(UserError, match=f"other {what}: give the same"):
        write_job(job(begun, **changed))


def test_without_checkpoints_another_job_begins(tmp_path):
    work_folder(tmp_path / "out").mkdir()
    write_job(job(tmp_path))
    file = write_job(job(tmp_path, sha256="b"))
    assert msgspec.json.decode(file.read_bytes(), type=SftJob).data.sha256 == "b"


def test_two_processes_do_not_share_a_folder(tmp_path):
    with lock_folder(tmp_path), pytest.raises(UserError, match="another process trains"), lock_folder(tmp_path):
        pass
    with lock_folder(tmp_path):
        pass
