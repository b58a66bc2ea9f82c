"""Loading of weights into vLLM: most of it while the old weights generate, the rest during the pause.

vLLM converts weights to its kernels' format when loading, which takes most of the time. They are loaded into a second
set of layers, in slices between steps; the switch moves that set's tensors into the serving layers:

- On a CPU by exchanging tensors: a packed copy cannot be overwritten in place.
- On a GPU by copying, because CUDA graphs hold the serving addresses: from device memory if a second set fits beside
  the key-value cache, otherwise from pinned host memory.

Without a second set weights are loaded in place, during the pause. All of this runs on the engine thread, or in each
rank's process.
"""

import copy
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers import rotary_embedding
from vllm.model_executor.model_loader import get_model
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.platforms import current_platform
from vllm.utils.platform_utils import is_pin_memory_available
from vllm.v1.worker.gpu_worker import Worker

from dart_streams.errors import UserError
from dart_streams.policy.rendering import UnsupportedModel
from dart_streams.policy.staged_weights import SecondSetPlace

SLICE = 4
"""Tensors loaded between two steps: some milliseconds."""
PACKED = "cpu_linear"
"""Attribute with the packed weights of vLLM's CPU layers (a function)."""

Tensors = Mapping[str, torch.Tensor]


class InPlace:
    """Loads over the serving weights during the pause."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.tensors: Tensors = {}

    def load(self, tensors: Tensors) -> Iterator[None]:
        """Keep the tensors until the pause."""
        self.tensors = tensors
        yield

    def exchange(self) -> None:
        """Load the tensors over the old ones."""
        tensors, self.tensors = self.tensors, {}
        self.worker.reload_weights(weights_iterator=iter(tensors.items()))


class DoubleBuffered:
    """Loads into a second set of layers, on ``device`` if given, and exchanges the tensors of both sets."""

    def __init__(self, worker: Worker, device: str | None = None) -> None:
        self.serving: torch.nn.Module = worker.get_model()
        # Attention layers register in the configuration by name, so the second model has a copy.
        self.config: VllmConfig = copy.copy(worker.vllm_config)
        self.config.compilation_config = copy.copy(self.config.compilation_config)
        self.config.compilation_config.static_forward_context = {}
        self.config.load_config = copy.copy(self.config.load_config)
        self.config.load_config.device = device
        # vLLM caches rotary embeddings by settings, so two models would share one.
        rotary_embedding._ROPE_DICT.clear()
        with set_current_vllm_config(self.config):
            self.spare: Any = get_model(vllm_config=self.config)
        rotary_embedding._ROPE_DICT.clear()
        self.names = {name for name, _ in self.spare.named_parameters()}
        self.tied = list(tied_layers(self.spare))
        if shared := set(map(id, tensors_of(self.serving))) & set(map(id, tensors_of(self.spare))):
            raise RuntimeError(f"vLLM shares {len(shared)} tensors between two models, which cannot be exchanged")

    def load(self, tensors: Tensors) -> Iterator[None]:
        """Load into the second set; raise :class:`UnsupportedModel` if weights of vLLM's model are missing."""
        initialize_layerwise_reload(self.spare)
        yield
        items = list(tensors.items())
        missing = set(self.names)
        for start in range(0, len(items), SLICE):
            with set_current_vllm_config(self.config):
                loaded = self.spare.load_weights(items[start : start + SLICE])
            missing -= self.names if loaded is None else loaded
            yield
        if missing:
            raise UnsupportedModel(
                f"vLLM's {type(self.spare).__name__} finds no tensors for {len(missing)} of its weights among the "
                f"trainer's, {min(missing)} for one: their names differ"
            )
        with set_current_vllm_config(self.config):
            finalize_layerwise_reload(self.spare, self.config.model_config)
            # Tied layers are not loaded themselves and still hold the former packed weights.
            for layer in self.tied:
                layer.quant_method.process_weights_after_loading(layer)
        yield

    def exchange(self) -> None:
        """Exchange the tensors of both sets by reference, packed ones included."""
        for ours, theirs in zip(tensors_of(self.serving), tensors_of(self.spare), strict=True):
            ours.data, theirs.data = theirs.data, ours.data
        for layer, twin in zip(self.serving.modules(), self.spare.modules(), strict=True):
            if hasattr(layer, PACKED):
                ours = getattr(layer, PACKED)
                setattr(layer, PACKED, getattr(twin, PACKED))
                setattr(twin, PACKED, ours)


class Copied(DoubleBuffered):
    """Double buffering that copies the second set; serving tensors stay in place."""

    def __init__(self, worker: Worker, place: SecondSetPlace) -> None:
        if worker.model_config.quantization is not None and place == "host":
            raise UserError(
                'rollout.vllm.second_set is "host" (or "device", without room for it), but vLLM quantizes '
                f'{worker.model_config.model} on the device: set rollout.vllm.second_set = "none"'
            )
        super().__init__(worker, "cpu" if place == "host" else None)
        self.pins = place == "host" and is_pin_memory_available()
        self.pin()

    def load(self, tensors: Tensors) -> Iterator[None]:
        """Load into the second set and pin it again, since vLLM may replace tensors."""
        yield from super().load(tensors)
        self.pin()

    def pin(self) -> None:
        """Pin the second set if it is in host memory."""
        if self.pins:
            pin_tensors(self.spare)

    def exchange(self) -> None:
        """Copy the second set over the serving tensors."""
        copy_tensors(self.spare, self.serving)


def pin_tensors(model: torch.nn.Module) -> None:
    """Move parameters and buffers to pinned memory."""
    for tensor in tensors_of(model):
        if not tensor.is_pinned():
            tensor.data = tensor.data.pin_memory()


def copy_tensors(source: torch.nn.Module, target: torch.nn.Module) -> None:
    """Copy parameters and buffers of one model over another's; copies overlap and are complete on return."""
    for to, by in zip(tensors_of(target), tensors_of(source), strict=True):
        if to.shape != by.shape or to.dtype != by.dtype:
            raise RuntimeError(f"the second set has {by.dtype} {by.shape} for {to.dtype} {to.shape}")
        to.data.copy_(by.data, non_blocking=True)
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def tied_layers(model: torch.nn.Module) -> Iterator[Any]:
    """Yield layers that share an earlier layer's weight, such as a head tied to the embedding."""
    seen: set[int] = set()
    for layer in model.modules():
        weight = layer._parameters.get("weight")
        if weight is not None and id(weight) in seen:
            yield layer
        seen.add(id(weight))


def tensors_of(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Return parameters and buffers of a model in layer order."""
    return itertools.chain(model.parameters(), model.buffers())


def loader_of(worker: Worker, place: SecondSetPlace) -> InPlace | DoubleBuffered:
    """Return the loader for a vLLM worker with a second set at ``place``."""
    if place == "none":
        return InPlace(worker)
    return DoubleBuffered(worker) if current_platform.is_cpu() else Copied(worker, place)
