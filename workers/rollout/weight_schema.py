"""Which tensors a model has: weights of another one are refused before they are served."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForImageTextToText

from workers.rollout.engine import LoadFault


class WeightSchema:
    """The tensor shapes of a model, by name; tied tensors may be missing from a file.

    Weights are checked before generation pauses for them: vLLM loads what it finds and only warns of missing tensors,
    and a mix of two versions must never be served.
    """

    def __init__(self, model_config: Any) -> None:
        with torch.device("meta"):
            model = AutoModelForImageTextToText.from_config(model_config)
        self.shapes = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
        self.tied = set(getattr(model, "all_tied_weights_keys", None) or {})
        self.elements = sum(parameter.numel() for parameter in model.parameters())
        self.dtype: torch.dtype = model.dtype

    def check(self, tensors: Mapping[str, Tensor], place: str) -> None:
        """Raise :class:`LoadFault` unless the ``tensors`` from ``place`` are of this model."""
        found = {name: list(tensor.shape) for name, tensor in tensors.items()}
        unknown = sorted(found.keys() - self.shapes.keys())
        missing = sorted(self.shapes.keys() - found.keys() - self.tied)
        wrong = [f"{name} {shape}" for name, shape in found.items() if shape != self.shapes.get(name, shape)]
        if unknown or missing or wrong:
            difference = f"unknown {unknown[:3]}, missing {missing[:3]}, of another shape {wrong[:3]}"
            raise LoadFault(f"{place} is of another model: {difference}")
