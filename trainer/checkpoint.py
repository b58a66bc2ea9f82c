"""Checkpoints: model, optimiser and state, complete under their final name or not there at all."""

import re
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import structlog
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

from dart_streams import fsync as durable
from dart_streams.errors import UserError
from trainer import crash_points
from trainer.learning import lora
from trainer.ranks import Ranks
from trainer.state import TrainerState

KEPT = 2
STATE = "state.json"
SCALING = "scaling"
"""The key of what adapters are multiplied with, which is not among the tensors that are trained."""
NAME = re.compile(r"epoch-(\d+)-step-(\d+)")
PARTIAL = ".partial-"

log = structlog.get_logger()


class CheckpointNotWritten(UserError):
    """A checkpoint that could not be written. What was trained since the last one is trained again after a restart."""

    exit_code = 1


@dataclass
class Checkpoints:
    """The checkpoints of a run in one folder that all ranks share. All methods are collective.

    The tensors are written shard by shard by their own rank, and can be read by another number of ranks.
    """

    folder: Path
    ranks: Ranks

    def __post_init__(self) -> None:
        # A single rank saves without collectives on purpose, and torch warns of it.
        warnings.filterwarnings("ignore", "torch.distributed is disabled")

    def save(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, state: TrainerState, epoch: int) -> None:
        """Write a checkpoint: first aside, durable, then under its name. Older ones but one are removed.

        Raises CheckpointNotWritten if its disk is full or fails; what was written of it is removed.
        """
        name = f"epoch-{epoch:04d}-step-{state.train_step:08d}"
        partial = self.folder / f"{PARTIAL}{name}"
        try:
            self._write(partial, self.folder / name, model, optimizer, state)
        except (CheckpointException, OSError) as error:
            if self.ranks.first:
                shutil.rmtree(partial, ignore_errors=True)
            free = shutil.disk_usage(self.folder.parent).free
            raise CheckpointNotWritten(
                f"checkpoint {name} can't be written to {self.folder} ({reason_of(error)}), and {free / 1e6:.0f} MB "
                "are free there: make room, and start the trainer again; it goes on from the checkpoint before"
            ) from error

    def _write(
        self,
        partial: Path,
        final: Path,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        state: TrainerState,
    ) -> None:
        if self.ranks.first:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        self.ranks.barrier()
        writer = dcp.FileSystemWriter(partial, thread_count=1, sync_files=True)
        # A single rank has nobody to plan with: that is a quarter of the time.
        dcp.save(tensors(model, optimizer), storage_writer=writer, no_dist=self.ranks.count == 1)
        if self.ranks.first:
            crash_points.reach(crash_points.IN_CHECKPOINT)
            durable.write(partial / STATE, msgspec.json.encode(state))
            durable.sync(partial)
            shutil.rmtree(final, ignore_errors=True)
            partial.rename(final)
            durable.sync(self.folder)
            for old in self.complete()[:-KEPT]:
                shutil.rmtree(old, ignore_errors=True)

    def restore(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> TrainerState | None:
        """Load the newest checkpoint into model and optimiser and return its state; None if there is none."""
        found = self.complete() if self.ranks.first else []
        newest: Path | None = self.ranks.from_first(found[-1] if found else None)
        if newest is None:
            return None
        saved = tensors(model, optimizer)
        try:
            dcp.load(saved, storage_reader=dcp.FileSystemReader(newest))
        except CheckpointException as error:
            raise UserError(
                f"checkpoint {newest} is not of this policy ({reason_of(error)}): a run keeps its policy.path and its "
                "trainer.lora (rank and targets); start another run, with `dart-streams run --init` if from its weights"
            ) from error
        if has_frozen(model) and float(saved[SCALING]) != lora.scaling_in(model):
            raise UserError(
                f"checkpoint {newest} has adapters that count {float(saved[SCALING]):g} times (alpha / rank), not "
                f"{lora.scaling_in(model):g} times: a run keeps its trainer.lora.alpha"
            )
        options = StateDictOptions(strict=not has_frozen(model))
        set_state_dict(
            model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"], options=options
        )
        state = msgspec.json.decode((newest / STATE).read_bytes(), type=TrainerState)
        log.info("checkpoint restored", folder=str(newest), train_step=state.train_step, version=state.version)
        return state

    def remove_partial(self, epoch: int) -> None:
        """Remove what trainers of earlier epochs left that ended while they wrote a checkpoint."""
        for path in self.folder.glob(f"{PARTIAL}*"):
            match = NAME.fullmatch(path.name.removeprefix(PARTIAL))
            if match and int(match[1]) < epoch:
                shutil.rmtree(path, ignore_errors=True)

    def complete(self) -> list[Path]:
        """Return the complete checkpoints, the newest last: of the newest epoch, the one with the most steps."""
        named = [(match, path) for path in self.folder.glob("epoch-*") if (match := NAME.fullmatch(path.name))]
        return [path for _, path in sorted((tuple(map(int, match.groups())), path) for match, path in named)]


def reason_of(error: BaseException) -> str:
    """Return the last line of an error: torch's has the tracebacks of all ranks before it."""
    return str(error).strip().rpartition("\n")[2] or type(error).__name__


def tensors(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the sharded tensors of both, by names that do not depend on the number of ranks.

    Frozen parameters, which the model's directory has, are left out.
    """
    of_model, of_optimizer = get_state_dict(model, optimizer)
    if has_frozen(model):
        trained = {name for name, value in model.named_parameters() if value.requires_grad}
        of_model = {name: value for name, value in of_model.items() if name in trained}
        scaling = torch.tensor(lora.scaling_in(model), dtype=torch.float64)
        return {"model": of_model, "optimizer": of_optimizer, SCALING: scaling}
    return {"model": of_model, "optimizer": of_optimizer}


def has_frozen(model: torch.nn.Module) -> bool:
    """Return whether some parameters are not trained, as beside adapters."""
    return not all(value.requires_grad for value in model.parameters())
