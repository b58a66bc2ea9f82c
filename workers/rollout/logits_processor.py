"""A vLLM logits processor: masks the tokens that are not allowed, and records the entropy of each token.

Exact entropies cost one softmax a step here; requesting the log-probabilities of the whole vocabulary from vLLM would
cost as much as generating. vLLM's log-probabilities are over the same allowed tokens, as the trainer's are.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from vllm.config import VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

ENTROPIES = "entropies"
"""The extra sampling argument: a dict that receives the request's entropies (nats) by token index.

A token computed again, after a switch of weights, overwrites its entry.
"""


class RowState(NamedTuple):
    """One request in the batch; ``tokens`` is vLLM's own growing list of its output."""

    entropies: dict[int, float]
    temperature: float
    tokens: list[int]


def processor_class(allowed_mask: Callable[[int], torch.Tensor]) -> type[LogitsProcessor]:
    """Return the processor that allows ``allowed_mask(vocabulary)`` (vocabulary,).

    A class made at run time, because vLLM makes the instance; vLLM must therefore run in this process.
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
                    rows[index].entropies[len(rows[index].tokens)] = entropy
            return logits_BV

    return AllowedTokens


def row_of(params: SamplingParams, _prompt: list[int] | None, tokens: list[int]) -> RowState | None:
    """Return the state of a request that enters the batch; the entropies of greedy ones are of temperature 1."""
    entropies = (params.extra_args or {}).get(ENTROPIES)
    return None if entropies is None else RowState(entropies, params.temperature or 1.0, tokens)
