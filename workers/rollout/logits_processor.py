"""A vLLM logits processor: bans what may never be sampled, and writes down how uncertain each token was.

Exact entropies cost one softmax a step here; asking vLLM for the log-probabilities of the whole vocabulary would cost
as much as generating. Log-probabilities that vLLM reports are over the same allowed tokens, as the trainer's are.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from vllm.config import VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

KEY = "entropies_of"
"""The extra sampling argument that names the request under which entropies are written down."""

Entropies = dict[str, dict[int, float]]
"""Nats by request and token index; a token computed again, after a switch of weights, overwrites its entry."""


class RowState(NamedTuple):
    """One request in the batch; ``made`` is vLLM's own growing list of its tokens."""

    key: str
    temperature: float
    made: list[int]


def processor_class(allowed_mask: Callable[[int], torch.Tensor], entropies: Entropies) -> type[LogitsProcessor]:
    """Return the processor that allows ``allowed_mask(vocabulary)`` and writes into ``entropies``.

    A class made at run time, because vLLM makes the instance; it must therefore run in this process.
    """

    class AllowedTokens(LogitsProcessor):
        def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
            self.banned = ~allowed_mask(vllm_config.model_config.get_vocab_size()).to(device)
            self.device = device
            self.rows: dict[int, RowState] = {}

        def is_argmax_invariant(self) -> bool:
            return False

        def update_state(self, batch_update: BatchUpdate | None) -> None:
            process_dict_updates(self.rows, batch_update, row_of)

        def apply(self, logits_BV: torch.Tensor) -> torch.Tensor:
            logits_BV.masked_fill_(self.banned, float("-inf"))
            rows = self.rows
            scales = [rows[index].temperature if index in rows else 1.0 for index in range(len(logits_BV))]
            scaled_BV = logits_BV / torch.tensor(scales, device=self.device).unsqueeze(1)
            for index, entropy in enumerate(torch.special.entr(scaled_BV.softmax(-1)).sum(-1).tolist()):
                if index in rows:
                    entropies[rows[index].key][len(rows[index].made)] = entropy
            return logits_BV

    return AllowedTokens


def row_of(params: SamplingParams, _prompt: list[int] | None, made: list[int]) -> RowState | None:
    """Return what to remember of a request that enters the batch; greedy ones count as of temperature 1."""
    key = (params.extra_args or {}).get(KEY)
    return None if key is None else RowState(key, params.temperature or 1.0, made)
