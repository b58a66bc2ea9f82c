"""Ranks of a training job: one process each, joined by gloo or nccl."""

import contextlib
import datetime
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from dart_streams.config.hardware import available_cores
from dart_streams.errors import UserError

TIMEOUT = datetime.timedelta(minutes=10)
"""Time after which a silent rank counts as dead; rank 0 broadcasts far more often."""
BEAT_S = 30.0
"""Time between two signs of life of rank 0 while it works alone."""
LONGEST_WORK_S = 6 * 3600.0
"""Time after which rank 0's work alone counts as hanging."""
MEETING = "DART_RANKS_MEET_IN"
"""Environment variable for the file in which the ranks of one node meet (torch's FileStore)."""
Item = TypeVar("Item")


class RanksUnreachable(UserError):
    """The ranks of a job can't connect to each other; a restart may find them."""

    exit_code = 1


@dataclass
class Ranks:
    """Rank of this process in the job, and its collectives. ``local`` is the number of ranks of a node, 0: all."""

    rank: int
    count: int
    device: torch.device
    local: int = 0

    @property
    def first(self) -> bool:
        """Whether this is rank 0, the only rank that uses Kafka and writes rows."""
        return self.rank == 0

    def mesh(self) -> DeviceMesh:
        """Return the mesh for ``fully_shard``: nodes replicate what the ranks of each shard (HSDP). Collective.

        On one node, and with one rank for each node, it has one dimension: all ranks shard.
        """
        if self.local <= 1 or self.local == self.count:
            return init_device_mesh(self.device.type, (self.count,))
        shape = (self.count // self.local, self.local)
        return init_device_mesh(self.device.type, shape, mesh_dim_names=("replicate", "shard"))

    def from_first(self, value: Any, kind: Any) -> Any:
        """Return rank 0's ``value``, of the type ``kind``, on every rank.

        Ranks exchange msgpack of declared types. torch's collectives for objects unpickle what a connection brings.
        """
        if self.count == 1:
            return value
        content = msgspec.msgpack.encode(value) if self.first else b""
        size = torch.tensor([len(content)])
        dist.broadcast(size, src=0)
        box = byte_tensor(content, int(size))
        dist.broadcast(box, src=0)
        return msgspec.msgpack.decode(box.numpy().tobytes(), type=kind)

    def total(self, values: list[float]) -> list[float]:
        """Return the sums over all ranks."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def gathered(self, values: Sequence[Item], kind: type[Item]) -> list[Item]:
        """Return the values of all ranks, of the type ``kind``, in rank order; each rank may give any number."""
        if self.count == 1:
            return list(values)
        content = msgspec.msgpack.encode(values)
        sizes = list(torch.zeros(self.count, dtype=torch.int64).split(1))
        dist.all_gather(sizes, torch.tensor([len(content)]))
        longest = int(max(sizes))
        parts = [byte_tensor(b"", longest) for _ in sizes]
        dist.all_gather(parts, byte_tensor(content, longest))
        decoder = msgspec.msgpack.Decoder(list[kind])  # type: ignore[valid-type]
        own = (part[:size].numpy().tobytes() for part, size in zip(parts, sizes, strict=True))
        return [item for content in own for item in decoder.decode(content)]

    def largest(self, value: float) -> float:
        """Return the maximum over all ranks."""
        return self._reduced([value], dist.ReduceOp.MAX)[0]

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set on any rank."""
        return self.largest(float(flag)) > 0

    @contextlib.contextmanager
    def failing_together(self) -> Iterator[None]:
        """Raise OSError on every rank if the block raised it on any, so that no rank waits for a failed one."""
        failure = ""
        try:
            yield
        except OSError as error:
            failure = str(error) or type(error).__name__
        if failures := [text for text in self.gathered([failure], str) if text]:
            raise OSError(failures[0])

    @contextlib.contextmanager
    def first_working(self) -> Iterator[None]:
        """Have all ranks wait for the end of rank 0's block, however long it takes; only rank 0 may work in it.

        A collective bounds silence, and a transfer of weights may take longer. The block has no collectives.
        """
        if self.count == 1:
            yield
            return
        if not self.first:
            yield
            while not self.from_first(None, bool):
                pass
            return
        ended = threading.Event()
        beating = threading.Thread(target=self._beat, args=(ended,), name="beat", daemon=True)
        beating.start()
        try:
            yield
        finally:
            ended.set()
            beating.join()
            if isinstance(sys.exception(), Exception | None):  # Otherwise the process ends at once.
                self.from_first(True, bool)

    def _beat(self, ended: threading.Event) -> None:
        """Tell the other ranks every :data:`BEAT_S` that rank 0 works, until it has ended."""
        with contextlib.suppress(RuntimeError):  # A rank has ended: rank 0's next collective says so.
            for _ in range(int(LONGEST_WORK_S / BEAT_S)):
                if ended.wait(BEAT_S):
                    return
                self.from_first(False, bool)

    def barrier(self) -> None:
        """Wait for every rank."""
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
    """Join the job of the launcher or of torchrun, or a job of one rank; leave it at the end of the block.

    Ranks leave together, since gloo aborts a process that exits during another's last collective
    (https://github.com/pytorch/pytorch/pull/179291). After an error a rank leaves alone.
    """
    rank, count = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_WORLD_SIZE", str(count)))
    device = own_device()
    connect(rank, count, "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    ranks = Ranks(rank, count, device, local)
    try:
        yield ranks
        ranks.barrier()
    finally:
        if dist.is_initialized():  # A vLLM engine in the same process destroys every group at its end.
            dist.destroy_process_group()


def connect(rank: int, count: int, backend: str) -> None:
    """Make the process group; raise :class:`RanksUnreachable` if the ranks can't connect to each other."""
    if count == 1:
        dist.init_process_group(backend, timeout=TIMEOUT, store=dist.HashStore(), rank=0, world_size=1)
        return
    meeting = os.environ.get(MEETING)
    store = dist.FileStore(meeting, count) if meeting else None
    try:
        dist.init_process_group(backend, timeout=TIMEOUT, store=store, rank=rank, world_size=count)
    except (RuntimeError, TimeoutError) as error:  # DistError is a RuntimeError.
        interface = os.environ.get("GLOO_SOCKET_IFNAME", "the one of the host name")
        raise RanksUnreachable(
            f"rank {rank} can't connect to the other ranks ({reason_of(error)}): check that "
            f"the network interface of gloo ({interface}; GLOO_SOCKET_IFNAME sets it) reaches all nodes, and that "
            "no firewall closes ports between them"
        ) from error


def byte_tensor(content: bytes, size: int) -> torch.Tensor:
    """Return ``content`` as a uint8 tensor of this size, filled with zeros."""
    return torch.frombuffer(bytearray(content.ljust(size, b"\0")), dtype=torch.uint8)


def reason_of(error: BaseException) -> str:
    """Return the first line of an error; torch adds a trace of its C++ functions."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def own_device() -> torch.device:
    """Return this process's GPU, or the CPU with half of the cores as threads: more OpenMP threads busy-wait."""
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
        return device
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    torch.set_num_threads(max(1, available_cores() // (2 * local)))
    return torch.device("cpu")
