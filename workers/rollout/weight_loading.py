"""Loads weights into vLLM: a part while the old ones generate, the rest during the pause.

vLLM converts weights into its kernels' format when it loads them. On a CPU that is a packed copy of each layer, which
takes most of the time of a load and cannot be overwritten in place. So there the weights are loaded into a second set
of layers, in slices between the engine's steps, and the switch only exchanges the tensors of the two sets. On a GPU a
second set would take memory from the KV cache, so weights are copied in place, during the pause.

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
from vllm.v1.engine.llm_engine import LLMEngine

from dart_streams.policy.rendering import UnsupportedModel

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
    """Loads into a second set of layers, which never generates, at the cost of the weights' memory once more."""

    def __init__(self, llm: LLMEngine) -> None:
        runners: list[Any] = llm.collective_rpc(lambda worker: worker.model_runner)
        (runner,) = runners
        self.serving: torch.nn.Module = runner.get_model()
        # The second model has a copy of the configuration: attention layers are registered in it by name.
        self.config: VllmConfig = copy.copy(runner.vllm_config)
        self.config.compilation_config = copy.copy(self.config.compilation_config)
        self.config.compilation_config.static_forward_context = {}
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
        """Load into the second set, packed as it will be used.

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
