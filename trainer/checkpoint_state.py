"""The tensors of a checkpoint: sharded, by names that depend on neither ranks nor optimizer."""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_model_state_dict

from trainer.learning import lora, optimizers

MODEL, OPTIMIZER = "model", "optimizer"
SCALING = "scaling"
"""Key of the adapters' scaling factor, which is no trained tensor."""


def sharded_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the trained tensors and the optimizer state, sharded, by names independent of the number of ranks."""
    fresh = not optimizer.state
    of_model, of_optimizer = get_state_dict(model, optimizer)
    if fresh:  # torch makes a first state by a step without gradients, which must not count.
        for values in optimizer.state.values():
            values["step"].zero_()
    of_parameters = {
        name: {part: optimizers.plain_state(value) for part, value in parts.items()}
        for name, parts in state_parts(of_optimizer).items()
    }
    state: dict[str, Any] = {MODEL: of_model, OPTIMIZER: of_parameters}
    if has_frozen(model):
        trained = {name for name, value in model.named_parameters() if value.requires_grad}
        state[MODEL] = {name: value for name, value in of_model.items() if name in trained}
    if lora.has_adapters(model):
        state[SCALING] = torch.tensor(lora.scaling_in(model), dtype=torch.float64)
    return state


def state_parts(of_optimizer: Mapping[str, Any]) -> Mapping[str, Mapping[str, torch.Tensor]]:
    """Return an optimizer's tensors, by name of the parameter and of the part."""
    parts: Mapping[str, Mapping[str, torch.Tensor]] = of_optimizer["state"]
    return parts


def load_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Load a :func:`sharded_state`; a parameter without saved optimizer state has a first one."""
    set_model_state_dict(model, saved[MODEL], options=StateDictOptions(strict=not has_frozen(model)))
    _, present = get_state_dict(model, optimizer)
    for name, parts in state_parts(present).items():
        for part, value in parts.items() if name in saved[OPTIMIZER] else ():
            optimizers.copy_state(value, saved[OPTIMIZER][name][part])


def has_frozen(model: torch.nn.Module) -> bool:
    """Return whether some parameters are frozen, as beside adapters or in the vision tower."""
    return not all(value.requires_grad for value in model.parameters())


def drop_unsaved(state: dict[str, Any], names: Collection[str], prefix: str = "") -> None:
    """Remove the optimizer state of parameters of which a checkpoint with tensors of these ``names`` has none.

    An optimizer has none of a parameter that never had a gradient, such as a layer that nothing reads. A first state
    has all of them.
    """
    state[OPTIMIZER] = {
        name: parts
        for name, parts in state[OPTIMIZER].items()
        if any(f"{prefix}{OPTIMIZER}.{name}.{part}" in names for part in parts)
    }


def unasked_tensors(state: Mapping[str, Any], names: Collection[str]) -> list[str]:
    """Return those ``names`` of a checkpoint's weights that a :func:`sharded_state` has no place for, in order."""
    saved = (name.removeprefix(f"{MODEL}.") for name in names if name.startswith(f"{MODEL}."))
    return sorted(name for name in saved if name not in state[MODEL])
