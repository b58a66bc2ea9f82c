"""A layer that the ranks of a job share, and its checkpoints: a rank's part of tests/model/test_trainer_ranks.py."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
from torch.distributed.fsdp import fully_shard

from dart_streams.config import parse
from dart_streams.errors import UserError
from tests.faults import disk
from tests.model.forkserver import run_ranks
from trainer.checkpoint import Checkpoints
from trainer.learning import lora, optimizers
from trainer.ranks import Ranks, join_job
from trainer.state import TrainerState

WIDTH = 70
"""Not a multiple of the ranks: shards are unequal."""


class Layer:
    """A layer in training; all ranks make the same updates."""

    def __init__(self, folder: Path, ranks: Ranks) -> None:
        torch.manual_seed(0)
        self.ranks = ranks
        self.model = torch.nn.Linear(WIDTH, 2 * WIDTH + 1)
        fully_shard(self.model, mesh=ranks.mesh())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1, fused=True)
        self.checkpoints = Checkpoints(folder, ranks)

    def step(self, number: int) -> None:
        """Make an update and save it."""
        self.model(torch.full((2, WIDTH), float(number))).square().sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.checkpoints.save(self.model, self.optimizer, TrainerState(version=number, train_step=number), 1)

    def restored(self) -> int | None:
        """Restore the newest checkpoint, and return its step."""
        state = self.checkpoints.restore(self.model, self.optimizer)
        return state.train_step if state else None

    def sum(self) -> float:
        """Return the sum of the weights and of what the optimizer remembers of them."""
        moments = self.optimizer.state[self.model.weight]
        tensors = (self.model.weight, *map(optimizers.plain_state, (moments["exp_avg"], moments["exp_avg_sq"])))
        return float(sum(lora.full_tensor(tensor).double().sum() for tensor in tensors))


class EightBitLayer(Layer):
    """A layer with 8-bit optimizer state on one rank; on two, a shard is no multiple of a block, and has float32."""

    def __init__(self, folder: Path, ranks: Ranks) -> None:
        super().__init__(folder, ranks)
        torch.manual_seed(0)
        self.model = torch.nn.Linear(128, 66)
        fully_shard(self.model, mesh=ranks.mesh())
        settings = parse({"trainer": {"optimizer": "adamw_8bit", "learning_rate": 0.1}}).trainer
        self.optimizer = optimizers.build(self.model.parameters(), settings, ranks.device)

    def step(self, number: int) -> None:
        """Make an update and save it."""
        self.model(torch.linspace(-1, number, 256).reshape(2, 128)).square().sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.checkpoints.save(self.model, self.optimizer, TrainerState(version=number, train_step=number), 1)


def steps(layer: Layer, *numbers: int) -> object:
    """Make updates; return the sum after the last."""
    for number in numbers:
        layer.step(number)
    return layer.sum()


def two_steps(layer: Layer) -> object:
    """Make two updates."""
    return steps(layer, 1, 2)


def resumed(layer: Layer) -> object:
    """Restore, and return what there is."""
    return [layer.restored(), layer.sum()]


def a_full_disk(layer: Layer) -> object:
    """Save on a disk that becomes full; return what each rank says and what is left of the checkpoint."""
    layer.step(1)
    if layer.ranks.first:
        disk.fill(layer.checkpoints.folder.parent)
    layer.ranks.barrier()
    try:
        layer.step(2)
    except UserError as error:
        said = str(error)
    layer.ranks.barrier()  # the first rank removes what was written
    left = sorted(place.name for place in layer.checkpoints.folder.iterdir())
    return [said, left, layer.restored()]


def a_rank_without_the_folder(layer: Layer) -> object:
    """Save where the second rank, as on another machine, has a folder of its own."""
    if not layer.ranks.first:
        layer.checkpoints.folder = layer.checkpoints.folder.parent / "elsewhere"
        (layer.checkpoints.folder / ".partial-epoch-0001-step-00000001").mkdir(parents=True)
    try:
        layer.step(1)
    except UserError as error:
        return str(error)
    return "saved"


class Task(NamedTuple):
    """What each rank of a job does with a layer of its own, whose checkpoints are in ``folder``."""

    folder: Path
    do: Callable[[Layer], object]
    kind: type[Layer] = Layer


def rank(job: Mapping[str, str], tasks: Sequence[Task], result: Path) -> None:
    """Be a rank; write what the tasks return, one after the other."""
    os.environ.update(job)
    with join_job() as ranks:
        found = [task.do(task.kind(task.folder, ranks)) for task in tasks]
        result.with_suffix(f".{ranks.rank}").write_bytes(msgspec.json.encode(found))


def results(count: int, tasks: Sequence[Task], result: Path, nodes: int = 1) -> list[list[object]]:
    """Return what each of ``count`` ranks on ``nodes`` gives, by task and rank."""
    run_ranks(count, rank, tasks, result, limit_s=400, nodes=nodes)
    found = [msgspec.json.decode(result.with_suffix(f".{number}").read_bytes()) for number in range(count)]
    return [list(of_task) for of_task in zip(*found, strict=True)]
