"""Checks the tensor names and shapes of a weights file against the policy, before generation pauses for it.

vLLM loads what it finds and only warns of missing tensors; a mix of two versions must never be served.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoModelForImageTextToText

from dart_streams.policy import weights
from workers.rollout.engine import LoadFault

Shapes = dict[str, list[int]]
"""Shapes by tensor name."""


class WeightSchema:
    """The tensor shapes of a model; tied tensors may be missing from a file."""

    def __init__(self, model_config: Any) -> None:
        with torch.device("meta"):
            model = AutoModelForImageTextToText.from_config(model_config)
        self.shapes: Shapes = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
        self.tied = set(getattr(model, "all_tied_weights_keys", None) or {})

    def check(self, folder: Path) -> None:
        """Raise :class:`~workers.rollout.engine.LoadFault` unless the weights in ``folder`` are of this model."""
        found = read_shapes(folder)
        unknown = sorted(found.keys() - self.shapes.keys())
        missing = sorted(self.shapes.keys() - found.keys() - self.tied)
        wrong = [f"{name} {shape}" for name, shape in found.items() if shape != self.shapes.get(name, shape)]
        if unknown or missing or wrong:
            difference = f"unknown {unknown[:3]}, missing {missing[:3]}, of another shape {wrong[:3]}"
            raise LoadFault(f"{folder} is of another model: {difference}")


def read_shapes(folder: Path) -> Shapes:
    """Read names and shapes from the header; raise :class:`~workers.rollout.engine.LoadFault` if it has none."""
    try:
        with safe_open(folder / weights.FILE, framework="pt") as file:
            return {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise LoadFault(f"{folder / weights.FILE} cannot be read: {error}") from None
