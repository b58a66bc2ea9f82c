"""Optimizers by configured name, and their state in a form that does not depend on how they store it."""

import os
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from dart_streams.config import Trainer
from dart_streams.config.hardware import available_cores


def build(parameters: Iterable[nn.Parameter], settings: Trainer, device: torch.device) -> torch.optim.Optimizer:
    """Return the optimizer of trained ``parameters``, whose model computes on ``device``."""
    # No weight decay: it would pull a pretrained model away from its weights.
    given: dict[str, Any] = {"lr": settings.learning_rate, "weight_decay": 0.0}
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if settings.offload == "all" and device.type == "cuda":
        # The step is on the CPU, and torchrun gives each rank one thread.
        torch.set_num_threads(max(1, available_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(trained, fused=True, **given)
    from torchao.optim import AdamW8bit

    optimizer = AdamW8bit(trained, **given)
    if device.type == "cpu":
        # Compiling a step takes seconds for each shape, and saves nothing for models of a CPU.
        optimizer.step = torch.compiler.set_stance("force_eager")(optimizer.step)
    return optimizer


def local_part(value: Tensor) -> Tensor:
    """Return this rank's part of a tensor."""
    value = value.detach()
    return value.to_local() if isinstance(value, DTensor) else value


def plain_part(value: Tensor) -> Tensor:
    """Return this rank's part of optimizer state as torch's own kind of tensor; 8-bit state as float32."""
    own: Any = local_part(value)
    return own.dequantize(torch.float32) if is_quantized(own) else own


def plain_state(value: Any) -> Any:
    """Return optimizer state that any number of ranks can read: 8-bit state as float32 in main memory."""
    own: Any = local_part(value)
    if not is_quantized(own):
        return value
    plain: Tensor = own.dequantize(torch.float32)
    if isinstance(value, DTensor):
        plain = DTensor.from_local(
            plain, value.device_mesh, value.placements, run_check=False, shape=value.shape, stride=value.stride()
        )
    return plain.cpu()


@torch.no_grad()
def copy_state(target: Tensor, saved: Tensor) -> None:
    """Copy :func:`plain_state` to the state of an optimizer."""
    own, given = local_part(target), local_part(saved)
    given = given.to(own.device)
    if is_quantized(own):
        round_state(own, given)
    else:
        own.copy_(given)


def is_quantized(value: Any) -> bool:
    """Return whether a tensor is torchao's 8-bit state."""
    return hasattr(value, "codes") and hasattr(value, "qmap")


def round_state(state: Any, values: Tensor) -> None:
    """Store float32 values; those of an equal block get the codes that they had.

    torchao scales a block by its largest magnitude. Where that is negative, it has no code of its own, and each
    rounding makes it smaller. Here a block is scaled so that its extremes have codes.
    """
    from torchao.optim.quant_utils import quantize_8bit_with_qmap

    blocks = values.reshape(-1, state.block_size)
    scale = blocks.amax(-1) / state.qmap[-1]
    if state.signed:
        scale = torch.maximum(scale, blocks.amin(-1) / state.qmap[0])
    scale = scale.clamp(min=1e-12)
    state.codes.copy_(quantize_8bit_with_qmap(blocks / scale[:, None], state.qmap).reshape(state.codes.shape))
    state.scale.copy_(scale)
