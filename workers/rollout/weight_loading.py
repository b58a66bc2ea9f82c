"""Weights on their way into vLLM: what is done while the old ones generate, and what is left for the pause.

vLLM brings weights into the form that its kernels want when it loads them. On a CPU that is a copy packed anew for
each layer, which takes most of the time of a load, and which cannot be written over in place. So there the load goes
into a second set of layers, in slices between the engine's steps, and the switch only exchanges what the two sets
hold. On a GPU a second set would take memory from the cache, and weights are copied in place, during the pause.

Everything here runs on the engine's thread: vLLM's loading is not made for several.
"""

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers import rotary_embedding
from vllm.model_executor.model_loader import get_model
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.v1.engine.llm_engine import LLMEngine

SLICE = 4
"""Tensors loaded between two steps: some milliseconds."""
PACKED = "cpu_linear"
"""Where vLLM's layers have their packed weights, as a function."""

Tensors = Mapping[str, torch.Tensor]


class Incoming(Protocol):
    """How a version comes into the engine."""

    def load(self, tensors: Tensors) -> Iterator[None]:
        """Take all tensors of a version, in slices between which generation may go on with the old ones."""
        ...

    def exchange(self) -> None:
        """Let what was loaded generate from now on."""
        ...


class InPlace:
    """All of the loading happens in the pause."""

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
    """A second set of layers, which never generates. It costs the memory of the weights once more."""

    def __init__(self, llm: LLMEngine) -> None:
        runners: list[Any] = llm.collective_rpc(lambda worker: worker.model_runner)
        (runner,) = runners
        self.serving: torch.nn.Module = runner.get_model()
        self.config = apart(runner.vllm_config)
        # vLLM caches rotary embeddings by their settings: models that share one would take it from each other.
        rotary_embedding._ROPE_DICT.clear()
        with set_current_vllm_config(self.config):
            self.spare: Any = get_model(vllm_config=self.config)
        rotary_embedding._ROPE_DICT.clear()
        if shared := set(map(id, tensors_of(self.serving))) & set(map(id, tensors_of(self.spare))):
            raise RuntimeError(f"vLLM shares {len(shared)} tensors between two models, which cannot be exchanged")

    def load(self, tensors: Tensors) -> Iterator[None]:
        """Load into the second set, packed as it will be used."""
        initialize_layerwise_reload(self.spare)
        yield
        for part in slices(list(tensors.items())):
            with set_current_vllm_config(self.config):
                self.spare.load_weights(part)
            yield
        with set_current_vllm_config(self.config):
            finalize_layerwise_reload(self.spare, self.config.model_config)
        yield

    def exchange(self) -> None:
        """Exchange what the two sets hold: tensors by reference, and the packed ones."""
        for one, other in zip(tensors_of(self.serving), tensors_of(self.spare), strict=True):
            one.data, other.data = other.data, one.data
        for layer, twin in zip(self.serving.modules(), self.spare.modules(), strict=True):
            if hasattr(layer, PACKED):
                ours = getattr(layer, PACKED)
                setattr(layer, PACKED, getattr(twin, PACKED))
                setattr(twin, PACKED, ours)


def tensors_of(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Return each tensor of a model once, in the order of its layers."""
    return itertools.chain(model.parameters(), model.buffers())


def apart(config: VllmConfig) -> VllmConfig:
    """Return the same configuration for another model: attention layers are registered in it by their names."""
    other = copy.copy(config)
    other.compilation_config = copy.copy(config.compilation_config)
    other.compilation_config.static_forward_context = {}
    return other


def slices(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Return the items in order, a few at a time."""
    return (items[start : start + SLICE] for start in range(0, len(items), SLICE))
