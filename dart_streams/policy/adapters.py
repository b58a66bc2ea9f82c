"""LoRA adapters as weight versions: peft's file, and the merge of base and adapter.

Trainer and rollout worker merge separately and must agree to the bit on any machine, thread count or sharding. Matrix
products do not, since libraries order and fuse their terms differently. So B·A is summed rank by rank, elementwise, in
float32, which IEEE 754 defines exactly.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor

PREFIX = "base_model.model."
DOWN, UP = ".lora_A.weight", ".lora_B.weight"
"""Suffixes of a layer's tensors: A is (rank, inputs), B is (outputs, rank)."""
SCALING = "scaling"
"""Metadata key of the factor of B·A, alpha / rank."""
BLOCK_ELEMENTS = 1 << 17
"""Elements merged at a time, so that they fit into the cache."""


class TornAdapter(Exception):
    """An adapter that does not fit its base weights."""


class Adapter(NamedTuple):
    """A version that is an adapter, on rank 0.

    ``tensors`` have peft's names, ``config`` is peft's ``adapter_config.json``, and ``base`` are the frozen weights as
    published, under the model's own names.
    """

    tensors: Mapping[str, Tensor]
    scaling: float
    config: bytes
    base: Mapping[str, Tensor]

    @property
    def metadata(self) -> dict[str, str]:
        """Metadata of the file."""
        return {SCALING: json.dumps(self.scaling)}


def merge_weight(weight_OI: Tensor, down_RI: Tensor, up_OR: Tensor, scaling: float) -> Tensor:
    """Return W + scaling · B·A, (O, I), in float32 rounded to the type of W, exact to the bit.

    The rows may be any part of a layer's, of W and B alike.
    """
    merged_OI = torch.empty_like(weight_OI)
    down_RI, up_OR = down_RI.float(), up_OR.float()
    rows = max(1, BLOCK_ELEMENTS // max(1, weight_OI.shape[1]))
    for start in range(0, weight_OI.shape[0], rows):
        block = slice(start, start + rows)
        sum_bI = torch.zeros_like(weight_OI[block], dtype=torch.float32)
        for rank in range(len(down_RI)):
            # Two operations: one that adds a product may round once or twice, as the machine has it.
            sum_bI += up_OR[block, rank, None] * down_RI[rank]
        sum_bI *= scaling
        merged_OI[block] = (sum_bI + weight_OI[block].float()).to(weight_OI.dtype)
    return merged_OI


def apply(base: Mapping[str, Tensor], file: Path) -> dict[str, Tensor]:
    """Return the weights of ``base`` with the adapter in ``file``; other tensors are shared with ``base``.

    Raises :class:`TornAdapter` if they do not fit, SafetensorError if the file is invalid.
    """
    with safe_open(file, framework="pt") as stored:
        try:
            scaling = float(stored.metadata()[SCALING])
        except (KeyError, TypeError, ValueError) as error:
            raise TornAdapter(f"no {SCALING} in its metadata ({error})") from None
        names = list(stored.keys())
        return with_adapter(base, {name: stored.get_tensor(name) for name in names}, scaling)


def with_adapter(base: Mapping[str, Tensor], tensors: Mapping[str, Tensor], scaling: float) -> dict[str, Tensor]:
    """Return the weights of ``base`` with an adapter's ``tensors``; raise :class:`TornAdapter` if they do not fit."""
    weights = dict(base)
    layers = {name.removeprefix(PREFIX).removesuffix(DOWN) for name in tensors if name.endswith(DOWN)}
    if len(tensors) != 2 * len(layers):
        raise TornAdapter(f"{len(tensors)} tensors of {len(layers)} layers")
    for layer in sorted(layers):
        weight, down = weights.get(f"{layer}.weight"), tensors[f"{PREFIX}{layer}{DOWN}"]
        up = tensors.get(f"{PREFIX}{layer}{UP}")
        if weight is None or up is None or weight.shape != (up.shape[0], down.shape[1]) or up.shape[1] != len(down):
            raise TornAdapter(f"{layer} is of no layer that there is")
        weights[f"{layer}.weight"] = merge_weight(weight, down, up, scaling)
    return weights
