"""Supervised fine-tuning: one process of each rank, from the episodes of a folder to a model directory.

| consumes | produces | waits for | unblocked by |
|---|---|---|---|
| episodes of a folder | checkpoints, a model directory | other ranks | their steps |
"""

import contextlib
import functools
import itertools
import math
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import structlog

from dart_data.sft import evaluation
from dart_data.sft.batches import count_steps, plan_batches, split_heldout
from dart_data.sft.episodes import EpisodeEntry, EpisodeFolder
from dart_data.sft.job import BEFORE, CHECKPOINTS, RESULT, Measures, SftJob, SftResult, lock_folder, read_job
from dart_streams import fsync as durable
from dart_streams.config.trainer import Imitate
from dart_streams.errors import UserError
from dart_streams.policy import cpu_features, exporting, finite, weights
from dart_streams.policy.rendering import renderer_of
from dart_streams.telemetry import setup
from trainer.checkpoint import Checkpoints
from trainer.data.prefetch import GroupReader, Prefetcher
from trainer.data.samples import ReadyGroup
from trainer.data.successes import sft_group
from trainer.learning.learner import Learner
from trainer.learning.schedule import rate_share
from trainer.main import launch_ranks, stopped_by_signals
from trainer.ranks import Ranks, join_job
from trainer.state import TrainerState

AHEAD = 2
"""Optimizer steps whose screenshots are read ahead."""
REPORT_INTERVAL_S = 3.0
MAX_LOST = 10
"""Updates in a row without a finite gradient after which training ends."""

log = structlog.get_logger()


class FineTuningStopped(UserError):
    """A signal ended training; the same command continues it."""

    exit_code = 1


def run(file: Path) -> SftResult:
    """Train the job in ``file`` on all its ranks; return the result.

    Raises :class:`FineTuningStopped` after SIGTERM or SIGINT, and UserError if training fails.
    """
    job = read_job(file)
    cpu_features.limit_isa(job.config.trainer.dtype, Path(job.config.run.state_dir))
    if job.config.trainer.processes > 1:
        if code := launch_ranks(job.config, ["-m", "dart_data.sft", str(file)]):
            raise UserError(f"a rank ended with exit code {code}: see its error above; the same command continues")
    else:
        with stopped_by_signals() as stop:
            run_rank(file, stop)
    if not (result := Path(job.output) / RESULT).exists():
        raise FineTuningStopped(f"stopped before the end: the same command continues from {file.parent}")
    return msgspec.json.decode(result.read_bytes(), type=SftResult)


def run_rank(file: Path, stop: threading.Event) -> None:
    """Run one rank: restore, measure, train, measure, write the model."""
    job = read_job(file)
    with join_job() as ranks, contextlib.ExitStack() as life:
        setup.start_logs(f"sft-{ranks.rank}")
        if ranks.first:
            life.enter_context(lock_folder(file.parent))
        # Ranks whose parent was killed may have ended the job before this one got the lock.
        if not ranks.from_first(Path(job.output).exists() if ranks.first else None, bool):
            FineTuning(job, file.parent, ranks).run(stop)


class FineTuning:
    """One rank of a fine-tuning. All methods are collective."""

    def __init__(self, job: SftJob, folder: Path, ranks: Ranks) -> None:
        self.job, self.folder, self.ranks = job, folder, ranks
        given, self.sft = job.config.trainer, job.config.trainer.sft
        own = {"learning_rate": self.sft.learning_rate, "kl_beta": 0.0, "imitate": Imitate()}
        self.settings = msgspec.structs.replace(given, **own)  # Without what only reinforcement learning has.
        self.policy = job.config.policy
        renderer = renderer_of(Path(job.model), self.policy)
        self.episodes = EpisodeFolder(folder)
        entries = list(self.episodes.episodes.values())
        self.trained, self.heldout = split_heldout(entries, self.sft.heldout)
        self.steps = count_steps(self.trained, self.sft)
        self.reader = GroupReader(self.episodes, renderer, self.policy, ranks.rank, ranks.count)
        self.learner = Learner(Path(job.model), renderer, self.settings, ranks)
        self.checkpoints = Checkpoints(folder / CHECKPOINTS, ranks, self.learner.frozen_sha256)
        self.lost = 0

    def run(self, stop: threading.Event) -> None:
        """Train from the last checkpoint to the last step, and write the model; return early if ``stop`` is set."""
        started = time.monotonic()
        if self.ranks.first:
            self.checkpoints.remove_partial(epoch=1)
        restored = self.checkpoints.restore(self.learner.scorer, self.learner.optimizer)
        done = restored.train_step if restored else 0
        before = self._measure_before(measured=bool(done))
        if not self._train(done, stop):
            return
        after = self._measure(self.heldout)
        result = SftResult(
            model=self.job.model,
            data=self.job.data,
            settings=self.sft,
            trained_trajectories=len(self.trained),
            heldout_trajectories=len(self.heldout),
            steps=self.steps,
            lost_updates=self.lost,
            seconds=round(time.monotonic() - started, 3),
            before=before,
            after=after,
        )
        self._write_model(result)

    def _train(self, done: int, stop: threading.Event) -> bool:
        """Make the optimizer steps after the first ``done``; return whether all are made."""
        prefetcher = Prefetcher(self.reader.read)
        groups = (
            sft_group(f"sft-{number:06d}", batch)
            for number, batch in enumerate(plan_batches(self.trained, self.sft, self.policy))
        )
        rest = itertools.islice(groups, done, None)
        waiting = list(itertools.islice(rest, AHEAD))
        for group in waiting:
            prefetcher.want(group)
        said_s, in_a_row = -math.inf, 0
        try:
            for number in range(done, self.steps):
                if self.ranks.any(stop.is_set()):
                    self._save(number)
                    return False
                group = waiting.pop(0)
                for following in itertools.islice(rest, 1):
                    prefetcher.want(following)
                    waiting.append(following)
                ready = prefetcher.take(group)
                rate = self._set_rate(number)
                nll, finite_update = self._update(ready, number)
                in_a_row = 0 if finite_update else in_a_row + 1
                if in_a_row == MAX_LOST:
                    raise UserError(
                        f"{MAX_LOST} updates in a row had no finite gradient: lower trainer.sft.learning_rate "
                        f"({self.sft.learning_rate:g}), or check the model"
                    )
                if self.ranks.first and (time.monotonic() - said_s > REPORT_INTERVAL_S or number + 1 == self.steps):
                    said_s = time.monotonic()
                    log.info("step", step=number + 1, of=self.steps, nll=round(nll, 4), learning_rate=rate)
                if (number + 1) % self.sft.checkpoint_every == 0 and number + 1 < self.steps:
                    self._save(number + 1)
        finally:
            prefetcher.close()
        return True

    def _set_rate(self, number: int) -> float:
        """Set the learning rate of a step and return it."""
        rise = math.ceil(self.sft.warmup * self.steps)
        rate = self.sft.learning_rate * rate_share(number, self.steps, rise)
        for group in self.learner.optimizer.param_groups:
            group["lr"] = rate
        return rate

    def _update(self, ready: ReadyGroup, number: int) -> tuple[float, bool]:
        """Make one optimizer step; return the mean negative log-likelihood before it, and whether it was finite."""
        refused = sum(ready.refused.values())
        if self.ranks.any(bool(refused)):
            raise UserError(
                f"step {number + 1}: {refused} answers of this rank can't be read any more, though they could be "
                f"before training: is {self.folder} complete? Remove it to begin again"
            )
        update = self.learner.imitate([ready])
        assert update is not None, "every batch has an answer"
        is_finite = math.isfinite(update.grad_norm)
        self.lost += not is_finite
        return update.nll, is_finite

    def _save(self, number: int) -> None:
        state = TrainerState(train_step=number)
        self.checkpoints.save(self.learner.scorer, self.learner.optimizer, state, epoch=0)

    def _measure(self, episodes: Sequence[EpisodeEntry]) -> Measures | None:
        found = evaluation.measure(self.learner, self.reader, episodes, self.settings)
        if found and self.ranks.first:
            log.info("held out", **msgspec.structs.asdict(found))
        return found

    def _measure_before(self, measured: bool) -> Measures | None:
        """Return the measures of the initial weights, from the file if a restart has others already."""
        file = self.folder / BEFORE
        if measured:
            text = self.ranks.from_first(file.read_bytes() if self.ranks.first else b"", bytes)
            return msgspec.json.decode(text, type=Measures | None)
        found = self._measure(self.heldout)
        if self.ranks.first:
            durable.replace_file(file, msgspec.json.encode(found))
        return found

    def _write_model(self, result: SftResult) -> None:
        """Write the model directory with its lineage on rank 0; it appears complete or not at all."""
        state = self.learner.weights()
        fault = self.ranks.from_first(finite.find_nonfinite(state.items()) if self.ranks.first else "", str)
        if fault:
            raise UserError(f"the trained weights are not finite: {fault}. Lower trainer.sft.learning_rate")
        with self.ranks.failing_together(), self.ranks.first_working():
            if self.ranks.first:
                fill = functools.partial(weights.load_state, state=state, source="the trainer")
                with exporting.new_directory(Path(self.job.output)) as (partial, _):
                    exporting.write_directory(Path(self.job.model), partial, fill)
                    text = msgspec.json.format(msgspec.json.encode(result), indent=2)
                    (partial / RESULT).write_bytes(text + b"\n")


def main(arguments: Sequence[str]) -> int:
    """Run one rank of torchrun's job and return the exit code."""
    try:
        if len(arguments) != 1:
            raise UserError("usage: torchrun … -m dart_data.sft JOB")
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        with stopped_by_signals() as stop:
            run_rank(Path(arguments[0]), stop)
        return 0
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
