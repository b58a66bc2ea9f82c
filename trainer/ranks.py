"""The ranks of a training job: one process each, started alone or by torchrun, joined by gloo or nccl."""

import contextlib
import datetime
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

TIMEOUT = datetime.timedelta(minutes=10)
"""After this a silent rank counts as dead; rank 0 broadcasts far more often (see ``trainer.data.batch_builder``)."""
Item = TypeVar("Item")


@dataclass
class Ranks:
    """The process's place among the ranks of the job, and what they exchange. All methods are collective."""

    rank: int
    count: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which alone uses Kafka and writes rows."""
        return self.rank == 0

    def from_first(self, value: Any) -> Any:
        """Return rank 0's ``value`` on every rank."""
        if self.count == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def total(self, values: list[float]) -> list[float]:
        """Return the sums over the ranks."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def gathered(self, values: Sequence[Item]) -> list[Item]:
        """Return the values of all ranks, rank by rank; each may have a number of its own."""
        if self.count == 1:
            return list(values)
        parts: list[Any] = [None] * self.count
        dist.all_gather_object(parts, list(values))
        return [value for part in parts for value in part]

    def largest(self, value: float) -> float:
        """Return the largest over the ranks."""
        return self._reduced([value], dist.ReduceOp.MAX)[0]

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set on any rank."""
        return self.largest(float(flag)) > 0

    @contextlib.contextmanager
    def failing_together(self) -> Iterator[None]:
        """Raise OSError on every rank if the block raised one on any, so that none waits for one that gave up."""
        failure = ""
        try:
            yield
        except OSError as error:
            failure = str(error) or type(error).__name__
        if found := [text for text in self.gathered([failure]) if text]:
            raise OSError(found[0])

    def barrier(self) -> None:
        """Return when every rank has come here."""
        if self.count > 1:
            dist.barrier()

    def _reduced(self, values: list[float], how: Any) -> list[float]:
        if self.count == 1:
            return values
        summed = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(summed, how)
        return summed.tolist()


@contextlib.contextmanager
def join_job() -> Iterator[Ranks]:
    """Join the job that torchrun's environment describes, or be a job of one; leave it at the end of the block.

    Ranks leave together: rank 0 has the store, and gloo's threads abort a process that ends while they let go of the
    tensors of its last collective (https://github.com/pytorch/pytorch/pull/179291). After an error a rank leaves alone.
    """
    rank, count = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = own_device()
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if count > 1:
        dist.init_process_group(backend, timeout=TIMEOUT)
    else:
        dist.init_process_group(backend, timeout=TIMEOUT, store=dist.HashStore(), rank=0, world_size=1)
    ranks = Ranks(rank, count, device)
    try:
        yield ranks
        ranks.barrier()
    finally:
        if dist.is_initialized():  # An engine of vLLM in the same process leaves every job at its end.
            dist.destroy_process_group()


def own_device() -> torch.device:
    """Return this process's GPU if there is one, otherwise the CPU, with threads that leave room for the others.

    The rest of the circle lives on the same cores: OpenMP threads that outnumber free cores spin, and cost several
    times the work (measured on 2 busy cores: 163 core-ms a sequence with 2 threads, 26 with 1).
    """
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
        return device
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // (2 * local)))
    return torch.device("cpu")
