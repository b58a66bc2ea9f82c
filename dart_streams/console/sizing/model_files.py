"""What a model directory says of its size: config.json and the headers of its safetensors. Nothing is loaded."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from dart_streams.errors import UserError

LONGEST_HEADER = 100_000_000
"""Bytes of a safetensors header; the format's own bound."""
LAYER = re.compile(r"\.(?:layers|blocks)\.\d+\.")
VISION = re.compile(r"(?:^|\.)vis(?:ual|ion)")


class TextShape(msgspec.Struct, frozen=True, kw_only=True):
    """The language model: widths and counts."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int


class VisionShape(msgspec.Struct, frozen=True, kw_only=True):
    """The vision tower; ``patch`` in pixels, ``merge`` patches a side become one token."""

    hidden: int
    layers: int
    intermediate: int
    patch: int
    merge: int


class LinearLayer(msgspec.Struct, frozen=True):
    """A linear layer, by its module's name: ``out`` x ``into`` parameters without the bias."""

    name: str
    out: int
    into: int

    @property
    def block(self) -> str:
        """The name of the layer of the model that it is a part of."""
        found = LAYER.search(self.name)
        return self.name[: found.end()] if found else ""


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """A model's size in parameters; ``root`` are those outside all layers, embeddings and head among them.

    ``linear`` are the language model's linear layers; ``bits`` are those of a parameter as it is served.
    """

    text: TextShape
    vision: VisionShape
    parameters: int
    layer: int
    root: int
    largest_tensor: int
    bits: int
    linear: tuple[LinearLayer, ...] = ()

    @property
    def pixels_per_token(self) -> int:
        """Pixels of an image that become one token."""
        return (self.vision.patch * self.vision.merge) ** 2


def read(folder: Path) -> ModelShape:
    """Read a Hugging Face directory; raise UserError if it lacks what is needed, or is of a kind that is not known."""
    try:
        config = json.loads((folder / "config.json").read_text())
    except OSError as error:
        raise UserError(f"{folder} has no config.json: {error.strerror}; name a Hugging Face model directory") from None
    except ValueError as error:
        raise UserError(f"{folder / 'config.json'} is no JSON: {error}") from None
    return shape_of(config, shapes_in(folder))


def shapes_in(folder: Path) -> dict[str, list[int]]:
    """Return the shapes of a model's tensors by name; raise UserError if the directory has none."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UserError(f"{folder} has no *.safetensors: their headers say how large each tensor is")
    shapes: dict[str, list[int]] = {}
    for file in files:
        shapes |= header(file)
    return shapes


def header(file: Path) -> dict[str, list[int]]:
    """Return the shapes of a safetensors file by name, from its first bytes alone."""
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if length > LONGEST_HEADER:
                raise ValueError(f"a header of {length} bytes")
            entries = json.loads(stream.read(length))
        return {name: list(entry["shape"]) for name, entry in entries.items() if name != "__metadata__"}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{file} is no safetensors file: {error}") from None


def shape_of(config: Mapping[str, Any], shapes: Mapping[str, list[int]]) -> ModelShape:
    """Return the size of a model, from its configuration and the shapes of its tensors by name."""
    text, vision = config.get("text_config") or config, config.get("vision_config")
    if not vision:
        raise UserError(f"a model of type {config.get('model_type')!r} has no vision_config: it takes no screenshots")
    if any(key in text for key in ("num_experts", "num_local_experts", "n_routed_experts")):
        raise UserError("a mixture of experts: its memory is not modeled here, only that of dense models")
    counts = {name: math.prod(shape) for name, shape in shapes.items()}
    if not counts:
        raise UserError("the safetensors files have no tensors")
    hidden, heads = needed(text, "hidden_size"), needed(text, "num_attention_heads")
    return ModelShape(
        text=TextShape(
            hidden=hidden,
            layers=needed(text, "num_hidden_layers"),
            heads=heads,
            kv_heads=text.get("num_key_value_heads") or heads,
            head_dim=text.get("head_dim") or hidden // heads,
            intermediate=needed(text, "intermediate_size"),
            vocabulary=needed(text, "vocab_size"),
        ),
        vision=VisionShape(
            hidden=needed(vision, "hidden_size"),
            layers=needed(vision, "depth", "num_hidden_layers"),
            intermediate=needed(vision, "intermediate_size"),
            patch=needed(vision, "patch_size"),
            merge=vision.get("spatial_merge_size") or 1,
        ),
        parameters=sum(counts.values()),
        layer=largest_layer(counts),
        root=sum(count for name, count in counts.items() if not LAYER.search(name)),
        largest_tensor=max(counts.values()),
        bits=32 if (config.get("dtype") or text.get("dtype") or config.get("torch_dtype")) == "float32" else 16,
        linear=tuple(linear_layers(shapes)),
    )


def linear_layers(shapes: Mapping[str, list[int]]) -> Iterator[LinearLayer]:
    """Yield the linear layers of the language model: matrices in its layers, whose norms and biases are vectors."""
    for name, shape in shapes.items():
        own, _, kind = name.rpartition(".")
        if kind == "weight" and len(shape) == 2 and LAYER.search(name) and not VISION.search(name):
            yield LinearLayer(own, *shape)


def needed(table: Mapping[str, Any], *names: str) -> int:
    """Return a whole number of a configuration; raise UserError if it has none of these."""
    for name in names:
        if isinstance(value := table.get(name), int) and value > 0:
            return value
    raise UserError(f"config.json gives no {' or '.join(names)}: this kind of model is not modeled here")


def largest_layer(counts: Mapping[str, int]) -> int:
    """Return the parameters of the largest layer."""
    layers: dict[str, int] = {}
    for name, count in counts.items():
        if found := LAYER.search(name):
            place = name[: found.end()]
            layers[place] = layers.get(place, 0) + count
    return max(layers.values(), default=0)
