"""LoRA by peft: adapters on linear layers; frozen weights are rounded first, so that engines have the same."""

import json
from collections.abc import Iterator
from typing import Any, cast

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from dart_streams.config.trainer import Lora, is_target
from dart_streams.errors import UserError
from dart_streams.policy import adapters

NAME = "default"
"""peft's adapter name."""
SEED = 0
"""Seed of A's initial values; each rank keeps its shard."""


def freeze(policy: Any, settings: Lora, published: torch.dtype) -> None:
    """Round the policy to its published type, freeze it, inject adapters; raise UserError without target layers."""
    names = targets_of(policy, settings)
    for parameter in policy.parameters():
        parameter.requires_grad_(False)
        parameter.copy_(parameter.to(published))
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        inject_adapter_in_model(config_of(settings, names), policy, NAME)


def config_of(settings: Lora, names: list[str]) -> LoraConfig:
    """Return peft's configuration for layers of these names."""
    return LoraConfig(r=settings.rank, lora_alpha=settings.alpha, target_modules=names, lora_dropout=0.0)


def targets_of(policy: Any, settings: Lora) -> list[str]:
    """Return the names of the linear layers that get an adapter."""
    inside = {id(module) for module in policy.get_decoder().modules()}
    linear = [name for name, module in policy.named_modules() if isinstance(module, nn.Linear) and id(module) in inside]
    for target in settings.targets:
        if not any(is_target(name, target) for name in linear):
            known = sorted({name.rpartition(".")[2] for name in linear})
            raise UserError(
                f"trainer.lora.targets: no linear layer of the language model of {type(policy).__name__} is named "
                f"{target!r}; it has {', '.join(known)}"
            )
    targets = [name for name in linear if settings.adapts(name)]
    if not targets:
        raise UserError(
            f"trainer.lora.rank: the language model of {type(policy).__name__} has no linear layers (mixtures of "
            "experts have theirs in one tensor): set it to 0"
        )
    return targets


def own_name(name: str) -> str | None:
    """Return the model's own name of a parameter; None for an adapter's."""
    return None if ".lora_A." in name or ".lora_B." in name else name.replace(".base_layer.", ".")


def matrices_of(layer: LoraLayer) -> tuple[Tensor, Tensor, Tensor]:
    """Return the parameters W, A and B of a layer."""
    base, down, up = layer.get_base_layer(), layer.lora_A[NAME], layer.lora_B[NAME]
    return cast(Tensor, base.weight), cast(Tensor, down.weight), cast(Tensor, up.weight)


def has_adapters(policy: nn.Module) -> bool:
    """Return whether the policy has adapters."""
    return next(layers_of(policy), None) is not None


def layers_of(policy: nn.Module) -> Iterator[tuple[str, LoraLayer]]:
    """Return the layers with an adapter and their names."""
    return ((name, module) for name, module in policy.named_modules() if isinstance(module, LoraLayer))


def tensors_of(policy: nn.Module, keep: bool) -> dict[str, Tensor]:
    """Return the adapter's float32 tensors on the CPU under peft's names, where ``keep``. Collective."""
    tensors: dict[str, Tensor] = {}
    for name, layer in layers_of(policy):
        _, down, up = matrices_of(layer)
        for suffix, part in ((adapters.DOWN, down), (adapters.UP, up)):
            tensor = full_tensor(part)
            if keep:
                tensors[f"{adapters.PREFIX}{name}{suffix}"] = tensor.cpu().clone()
    return tensors


def full_tensor(parameter: Tensor) -> Tensor:
    """Return the unsharded parameter. Collective."""
    own = parameter.detach()
    return own.full_tensor() if isinstance(own, DTensor) else own


def local_shard(parameter: Tensor) -> Tensor:
    """Return this rank's writable shard of a parameter."""
    own = parameter.detach()
    return own.to_local() if isinstance(own, DTensor) else own


def scaling_in(policy: nn.Module) -> float:
    """Return the factor of B·A in a model with adapters."""
    return next(float(layer.scaling[NAME]) for _, layer in layers_of(policy))


def merged_shards(policy: nn.Module, published: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield this rank's shards of W and B, and their values with adapters merged as served. Collective."""
    for name, layer in layers_of(policy):
        weight, down, up = matrices_of(layer)
        weight_oI, up_oR = local_shard(weight), local_shard(up)
        if len(weight_oI) != len(up_oR):
            raise RuntimeError(f"{name}: {len(weight_oI)} rows of W and {len(up_oR)} of B on this rank")
        scaling = layer.scaling[NAME]
        yield weight_oI, adapters.merge_weight(weight_oI.to(published), full_tensor(down), up_oR, scaling)
        yield up_oR, torch.zeros_like(up_oR)


def peft_config(policy: nn.Module, settings: Lora, base: str) -> bytes:
    """Return ``adapter_config.json`` for an adapter of the model in ``base``."""
    config = config_of(settings, [name for name, _ in layers_of(policy)])
    fields = config.to_dict() | {"base_model_name_or_path": base, "inference_mode": True}
    return json.dumps({name: sorted(v) if isinstance(v, set) else v for name, v in sorted(fields.items())}).encode()
