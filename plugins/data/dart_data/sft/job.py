"""The job of a supervised fine-tuning, in a folder beside the model to make, and the result. Without torch."""

import contextlib
import fcntl
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

from dart_streams import fsync as durable
from dart_streams.config import Config
from dart_streams.config.sft import Sft
from dart_streams.config.text import MALFORMED
from dart_streams.errors import UserError

JOB = "job.json"
BEFORE = "before.json"
CHECKPOINTS = "checkpoints"
LOCK = "lock"
PASS_KEYS = ("processes", "recompute", "micro_batch", "micro_batch_tokens", "head_tokens", "offload")
"""Keys of the trainer that change memory and time of a step, not its weights."""
RESULT = "sft.json"
"""Name of the result within the model's folder."""


class LeftOut(msgspec.Struct, frozen=True):
    """A trajectory that was left out as unusable, by its place in the data."""

    place: str
    reason: str


class DataFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The data: ``sha256`` (hex) of the usable trajectories, and counts."""

    path: str
    sha256: str
    trajectories: int
    answers: int
    unusable: list[LeftOut]


class SftJob(msgspec.Struct, frozen=True, kw_only=True):
    """What to train: a ``model`` folder on ``data``; ``output`` is the folder to make."""

    config: Config
    model: str
    output: str
    data: DataFacts


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """Held-out measures: mean negative log-likelihood (nats a token), and the share of actions that are equal."""

    nll: float
    equal_actions: float
    answers: int
    tokens: int


class SftResult(msgspec.Struct, frozen=True, kw_only=True):
    """Lineage and outcome of a fine-tuning; the measures are null without held-out trajectories.

    ``seconds`` and ``lost_updates`` (without a finite gradient) are those since the last restart.
    """

    model: str
    data: DataFacts
    settings: Sft
    trained_trajectories: int
    heldout_trajectories: int
    steps: int
    lost_updates: int
    seconds: float
    before: Measures | None
    after: Measures | None


def work_folder(output: Path) -> Path:
    """Return the folder of episodes and checkpoints while a model is trained; removed at the end."""
    return output.with_name(f".{output.name}.sft")


def write_job(job: SftJob) -> Path:
    """Write the job to its folder, unless one lies there; return its file.

    Raises :class:`UserError` if the folder has checkpoints of another job.
    """
    folder = work_folder(Path(job.output))
    file = folder / JOB
    if (folder / CHECKPOINTS).exists() and file.exists():
        before = read_job(file)
        if changed := changed_parts(before, job):
            raise UserError(
                f"{folder} has checkpoints of a fine-tuning with other {' and '.join(changed)}: give the same to "
                "continue it, or remove that folder to begin again"
            )
    durable.replace_file(file, msgspec.json.encode(job))
    return file


def changed_parts(before: SftJob, now: SftJob) -> list[str]:
    """Return what differs between two jobs, but for memory and ranks."""
    parts = {
        "data": (before.data.sha256, now.data.sha256),
        "settings": (settings_of(before), settings_of(now)),
        "model": (before.model, now.model),
    }
    return [name for name, (then, own) in parts.items() if then != own]


def settings_of(job: SftJob) -> bytes:
    """Return the settings that determine the weights of a step."""
    trainer = msgspec.to_builtins(job.config.trainer)
    for key in PASS_KEYS:
        trainer.pop(key, None)
    del trainer["sft"]["checkpoint_every"]
    return msgspec.json.encode((trainer, job.config.policy))


def read_job(file: Path) -> SftJob:
    """Return a job; raise :class:`UserError` for a file that is none."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=SftJob)
    except (OSError, *MALFORMED) as error:
        raise UserError(f"{file} is no job of a fine-tuning ({error}): remove {file.parent} to begin again") from None


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the folder's lock within the block; raise :class:`UserError` if another process holds it."""
    with (folder / LOCK).open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(
                f"another process trains in {folder}: wait for it or end it, or name another --output"
            ) from None
        yield


def remove_work(folder: Path) -> None:
    """Remove the folder of a fine-tuning that has ended, or has not begun."""
    shutil.rmtree(folder, ignore_errors=True)
