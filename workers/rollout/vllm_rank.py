"""A rank of vLLM: its weights, the mask over its logits, and the entropies of its tokens.

vLLM creates both classes in each rank: in this process for one rank, otherwise in a process of its own. The engine
thread calls :class:`RankExtension` by ``collective_rpc``. An error there ends the engine: ranks that went on without
one would answer other calls than they were asked.
"""

import ctypes
import gc
import glob
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.distributed import get_tensor_model_parallel_rank
from vllm.distributed.device_communicators.shm_broadcast import ShmRingBuffer
from vllm.distributed.device_communicators.shm_tensor_arena import ShmTensorArena
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from dart_streams.policy.shared_tensors import TensorPlace, map_tensors
from dart_streams.policy.staged_weights import SecondSetPlace
from workers.rollout.weight_loading import DoubleBuffered, InPlace, Tensors, loader_of

ENTROPIES = "entropies"
"""Extra sampling argument: the key under which a request's entropies are kept."""
BANNED_TOKENS = "banned_tokens"
"""Key of vLLM's additional configuration: tokens that are never sampled."""
PR_SET_PDEATHSIG = 1
SHARED_MEMORY = Path("/dev/shm")

Entropies = dict[int, float]
"""Entropies (nats) by token index; recomputed tokens overwrite."""


class RowState(NamedTuple):
    """A request in the batch; ``tokens`` is vLLM's own growing list."""

    entropies: Entropies
    temperature: float
    tokens: list[int]


class AllowedTokens(LogitsProcessor):
    """Masks the banned tokens, and keeps entropies on the first rank until they are taken.

    This costs one softmax a step; log-probabilities of the whole vocabulary from vLLM would cost as much as generating.
    """

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        banned: Any = vllm_config.additional_config
        self.banned = torch.zeros(vllm_config.model_config.get_vocab_size(), dtype=torch.bool, device=device)
        self.banned[banned[BANNED_TOKENS]] = True
        self.device = device
        self.keeps = get_tensor_model_parallel_rank() == 0
        self.entropies: dict[str, Entropies] = {}
        self.rows: dict[int, RowState] = {}

    def is_argmax_invariant(self) -> bool:
        """Return that a mask may change the likeliest token."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow the requests of the batch."""
        if self.keeps:
            process_dict_updates(self.rows, batch_update, self.row_of)

    def row_of(self, params: SamplingParams, _prompt: list[int] | None, tokens: list[int]) -> RowState | None:
        """Return the state of a request that enters the batch; greedy requests have entropies of temperature 1."""
        key = (params.extra_args or {}).get(ENTROPIES)
        if key is None:
            return None
        return RowState(self.entropies.setdefault(key, {}), params.temperature or 1.0, tokens)

    def apply(self, logits_BV: torch.Tensor) -> torch.Tensor:
        """Mask logits in place, and keep the entropies of what is left."""
        logits_BV.masked_fill_(self.banned, float("-inf"))
        rows = self.rows
        if not rows:
            return logits_BV
        scales = [rows[index].temperature if index in rows else 1.0 for index in range(len(logits_BV))]
        scaled_BV = logits_BV / torch.tensor(scales, device=self.device).unsqueeze(1)
        for index, entropy in enumerate(torch.special.entr(scaled_BV.softmax(-1)).sum(-1).tolist()):
            if index in rows:
                rows[index].entropies[len(rows[index].tokens)] = entropy
        return logits_BV


class RankExtension:
    """Calls that vLLM's worker class gets in addition; each runs between two steps."""

    weight_loader: InPlace | DoubleBuffered
    weight_slices: Iterator[None]

    def prepare_rank(self, place: SecondSetPlace, engine: int) -> None:
        """Make room for the second set of weights; a rank of its own process ends with the process ``engine``."""
        if os.getpid() != engine:
            end_with_parent(engine)
            unname_memory(os.environ.get("VLLM_DIST_IDENT", ""))
            unname_queues()
        worker: Any = self
        self.weight_loader = loader_of(worker, place)

    def begin_load(self, tensors: Tensors | dict[str, TensorPlace]) -> None:
        """Take the next version, whole: its tensors, or their places in another process."""
        places = {name: value for name, value in tensors.items() if isinstance(value, TensorPlace)}
        whole: Any = map_tensors(places) if places else tensors
        self.weight_slices = self.weight_loader.load(whole)

    def load_slice(self) -> bool:
        """Load some tensors; return whether all are loaded."""
        return next(self.weight_slices, True) is True

    def exchange_weights(self) -> None:
        """Serve the loaded weights."""
        self.weight_loader.exchange()

    def take_entropies(self, finished: Sequence[str], dropped: Sequence[str]) -> list[Entropies]:
        """Return the entropies of finished requests, and forget them and those of dropped ones."""
        worker: Any = self
        kept: dict[str, Entropies] = {}
        for processor in worker.model_runner.input_batch.logitsprocs.all:
            if isinstance(processor, AllowedTokens):
                kept = processor.entropies
        for key in dropped:
            kept.pop(key, None)
        return [kept.pop(key, {}) for key in finished]


def unname_memory(group: str) -> None:
    """Remove the names of the memory in which ranks on a CPU reduce; it would outlast a killed rank otherwise.

    All ranks have mapped it by now.
    """
    for file in SHARED_MEMORY.glob(f"{glob.escape(group)}-*-cpushm_*") if group else ():
        file.unlink(missing_ok=True)


def unname_queues() -> None:
    """Remove the names of the queues and tensor arenas of this process; they would outlast a killed process otherwise.

    The processes that read them have mapped them by now.
    """
    frozen = gc.get_freeze_count()
    gc.unfreeze()  # vLLM freezes what it has made, which hides it here.
    owners = gc.get_objects()
    if frozen:
        gc.freeze()
    for owner in owners:
        if type(owner) in (ShmRingBuffer, ShmTensorArena) and owner.is_creator:  # isinstance would run proxies' code.
            owner.shared_memory.unlink()
            owner.is_creator = False  # Otherwise its end would remove the name again.


def end_with_parent(parent: int) -> None:
    """Have the kernel end this process with the thread that started it, even a killed one; ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
