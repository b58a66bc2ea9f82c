"""The tensors that a model needs, by name and shape. Imports transformers."""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoModelForImageTextToText

from workers.rollout.engine import LoadFault


class WeightSchema:
    """Tensor shapes by name (tied ones may be missing), checked because vLLM only warns of missing tensors."""

    def __init__(self, model_config: Any) -> None:
        with torch.device("meta"):
            model = AutoModelForImageTextToText.from_config(model_config)
        self.shapes = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
        self.tied = set(getattr(model, "all_tied_weights_keys", None) or {})
        self.elements = sum(parameter.numel() for parameter in model.parameters())
        self.dtype: torch.dtype = model.dtype

    def check(self, tensors: Mapping[str, torch.Tensor], place: str) -> None:
        """Raise :class:`LoadFault` unless the ``tensors`` from ``place`` fit this model."""
        shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
        unknown = sorted(shapes.keys() - self.shapes.keys())
        missing = sorted(self.shapes.keys() - shapes.keys() - self.tied)
        wrong = [f"{name} {shape}" for name, shape in shapes.items() if shape != self.shapes.get(name, shape)]
        if unknown or missing or wrong:
            difference = f"unknown {unknown[:3]}, missing {missing[:3]}, of another shape {wrong[:3]}"
            raise LoadFault(f"{place} is from another model: {difference}")
