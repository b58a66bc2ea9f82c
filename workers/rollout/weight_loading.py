"""Loads weights into vLLM: a part while the old ones generate, the rest during the pause.

vLLM converts weights into its kernels' format when it loads them, which takes most of the time of a load. So they are
loaded into a second set of layers, in slices between the engine's steps, and the switch only brings that set's tensors
into the serving layers:

- On a CPU by exchanging the tensors of the two sets: a layer's packed copy cannot be overwritten in place.
- On a GPU by copying them, because CUDA graphs hold the addresses of the serving ones: from the device's memory if it
  has room for a second set beside the key-value cache, otherwise from pinned memory of the host.

Without a second set weights are loaded in place, during the pause.

Everything here runs on the engine's thread: vLLM's loading is not thread-safe.
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
from vllm.v1.engine.llm_engine import LLMEngine

from dart_streams.errors import UserError
from dart_streams.policy.rendering import UnsupportedModel
from dart_streams.policy.staged_weights import SecondSetPlace

SLICE = 4
"""Number of tensors loaded between two steps: some milliseconds."""
PACKED = "cpu_linear"
"""The attribute of vLLM's layers that holds their packed weights, as a function."""

Tensors = Mapping[str, torch.Tensor]


class InPlace:
    """Loads over the serving weights, during the pause."""

    def __init__(self, llm: LLMEngine) -> None:
        self.llm = llm
        self.tensors: Tensors = {}

    def load(self, tensors: Tensors) -> Iterator[None]:
        """Keep the tensors until the pause."""
        self.tensors = tensors
        yield

    def exchange(self) -> None:
        """Load the tensors over the old ones."""
        tensors, self.tensors = self.tensors, {}
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(tensors.items())})


class DoubleBuffered:
    """Loads into a second set of layers, which never generates, at the cost of the weights' memory once more.

    With ``device`` the second set is in another memory than the serving one.
    """

    def __init__(self, llm: LLMEngine, device: str | None = None) -> None:
        runners: list[Any] = llm.collective_rpc(lambda worker: worker.model_runner)
        (runner,) = runners
        self.serving: torch.nn.Module = runner.get_model()
        # The second model has a copy of the configuration: attention layers are registered in it by name.
        self.config: VllmConfig = copy.copy(runner.vllm_config)
        self.config.compilation_config = copy.copy(self.config.compilation_config)
        self.config.compilation_config.static_forward_context = {}
        self.config.load_config = copy.copy(self.config.load_config)
        self.config.load_config.device = device
        # vLLM caches rotary embeddings by their settings: two models would share one.
        rotary_embedding._ROPE_DICT.clear()
        with set_current_vllm_config(self.config):
            self.spare: Any = get_model(vllm_config=self.config)
        rotary_embedding._ROPE_DICT.clear()
        self.names = {name for name, _ in self.spare.named_parameters()}
        self.tied = list(tied_layers(self.spare))
        if shared := set(map(id, tensors_of(self.serving))) & set(map(id, tensors_of(self.spare))):
            raise RuntimeError(f"vLLM shares {len(shared)} tensors between two models, which cannot be exchanged")

    def load(self, tensors: Tensors) -> Iterator[None]:
        """Load into the second set, in the format in which it will be used.

        Raises :class:`UnsupportedModel` if vLLM's model does not take all of its weights from tensors of these names.
        """
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
                f"trainer's, {min(missing)} for one: it knows them by other names"
            )
        with set_current_vllm_config(self.config):
            finalize_layerwise_reload(self.spare, self.config.model_config)
            # What is tied to a loaded layer was not loaded itself, and has the former weights packed.
            for layer in self.tied:
                layer.quant_method.process_weights_after_loading(layer)
        yield

    def exchange(self) -> None:
        """Exchange the tensors of the two sets by reference, and the packed ones."""
        for one, other in zip(tensors_of(self.serving), tensors_of(self.spare), strict=True):
            one.data, other.data = other.data, one.data
        for layer, twin in zip(self.serving.modules(), self.spare.modules(), strict=True):
            if hasattr(layer, PACKED):
                ours = getattr(layer, PACKED)
                setattr(layer, PACKED, getattr(twin, PACKED))
                setattr(twin, PACKED, ours)


class Copied(DoubleBuffered):
    """As its base, but the switch copies the second set: the serving tensors stay where they are."""

    def __init__(self, llm: LLMEngine, place: SecondSetPlace) -> None:
        if llm.model_config.quantization is not None and place == "host":
            raise UserError(
                'rollout.vllm.second_set is "host" (or "device", without room for it), but vLLM quantizes '
                f'{llm.model_config.model} on the device: set rollout.vllm.second_set = "none"'
            )
        super().__init__(llm, "cpu" if place == "host" else None)
        self.pins = place == "host" and is_pin_memory_available()
        self.pin()

    def load(self, tensors: Tensors) -> Iterator[None]:
        """Load into the second set, which is in pinned memory afterwards, whatever vLLM has made of its tensors."""
        yield from super().load(tensors)
        self.pin()

    def pin(self) -> None:
        """Have the second set in pinned memory, if it is the host's and there is such memory."""
        if self.pins:
            pin_tensors(self.spare)

    def exchange(self) -> None:
        """Copy the tensors of the second set over the serving ones, and wait until they are there."""
        copy_tensors(self.spare, self.serving)


def pin_tensors(model: torch.nn.Module) -> None:
    """Move those parameters and buffers to pinned memory that are not there."""
    for tensor in tensors_of(model):
        if not tensor.is_pinned():
            tensor.data = tensor.data.pin_memory()


def copy_tensors(source: torch.nn.Module, target: torch.nn.Module) -> None:
    """Copy parameters and buffers of one model over those of another, which stay where they are.

    From pinned memory the copies overlap; they are complete on return.
    """
    for one, other in zip(tensors_of(target), tensors_of(source), strict=True):
        if one.shape != other.shape or one.dtype != other.dtype:
            raise RuntimeError(f"the second set has {other.dtype} {other.shape} for {one.dtype} {one.shape}")
        one.data.copy_(other.data, non_blocking=True)
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def tied_layers(model: torch.nn.Module) -> Iterator[Any]:
    """Return the layers whose weight is that of an earlier layer, such as a head tied to the embedding."""
    seen: set[int] = set()
    for layer in model.modules():
        weight = layer._parameters.get("weight")
        if weight is not None and id(weight) in seen:
            yield layer
        seen.add(id(weight))


def tensors_of(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Return the parameters and buffers of a model, in the order of its layers."""
    return itertools.chain(model.parameters(), model.buffers())


def loader_of(llm: LLMEngine, place: SecondSetPlace) -> InPlace | DoubleBuffered:
    """Return what loads weights into an engine, with a second set at ``place``."""
    if place == "none":
        return InPlace(llm)
    return DoubleBuffered(llm) if current_platform.is_cpu() else Copied(llm, place)
