"""The size of a model, read from config.json and the headers of its safetensors files. Weights are not loaded."""

import math
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dart_streams.config.section import Positive
from dart_streams.errors import UserError
from dart_streams.policy.model_folder import read_configuration, read_shapes
from dart_streams.policy.tensor_parallel import sharding_refusal

LAYER = re.compile(r"^.*?\.(?:layers|blocks)\.\d+\.")
VISION = re.compile(r"(?:^|\.)vis(?:ual|ion)")


class TextShape(msgspec.Struct, frozen=True, kw_only=True):
    """The language model's widths and counts, as config.json has them."""

    hidden: Positive = msgspec.field(name="hidden_size")
    layers: Positive = msgspec.field(name="num_hidden_layers")
    heads: Positive = msgspec.field(name="num_attention_heads")
    kv_heads: Positive | None = msgspec.field(name="num_key_value_heads", default=None)
    head_dim: Positive | None = None
    intermediate: Positive = msgspec.field(name="intermediate_size")
    vocabulary: Positive = msgspec.field(name="vocab_size")

    @property
    def attention(self) -> int:
        """Width of all query heads."""
        return self.heads * (self.head_dim or self.hidden // self.heads)

    @property
    def key_values(self) -> int:
        """Width of all key heads, which is that of the value heads."""
        return self.attention // self.heads * (self.kv_heads or self.heads)


class VisionShape(msgspec.Struct, frozen=True, kw_only=True):
    """The vision tower; ``patch`` is in pixels, and ``merge`` patches a side become one token."""

    hidden: Positive = msgspec.field(name="hidden_size")
    layers: Positive = msgspec.field(name="depth")
    intermediate: Positive = msgspec.field(name="intermediate_size")
    patch: Positive = msgspec.field(name="patch_size")
    merge: Positive = msgspec.field(name="spatial_merge_size", default=1)
    deepstack: tuple[int, ...] = msgspec.field(name="deepstack_visual_indexes", default=())

    @property
    def patch_values(self) -> int:
        """Input values of a patch: two frames of three colors."""
        return 2 * 3 * self.patch**2


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """Parameter counts of a model.

    ``layer`` is the largest layer, and ``root`` all parameters outside layers, such as the embeddings. ``linear`` has
    (outputs, inputs) of the language model's linear layers by module name, and ``width`` is a served parameter's bytes.
    """

    text: TextShape
    vision: VisionShape
    parameters: int
    layer: int
    root: int
    largest_tensor: int
    width: int
    linear: dict[str, tuple[int, int]]

    @property
    def pixels_per_token(self) -> int:
        """Pixels of an image that become one token."""
        return (self.vision.patch * self.vision.merge) ** 2


def read_shape(folder: Path) -> ModelShape:
    """Read a Hugging Face directory; raise UserError if it lacks a size, or if its kind of model is not supported."""
    return shape_of(read_configuration(folder), read_headers(folder))


def refuse_sharding(folder: Path, ranks: int) -> None:
    """Raise UserError if ``ranks`` ranks cannot share the heads of the model in a directory."""
    if reason := sharding_refusal(read_configuration(folder), ranks):
        raise UserError(reason)


def read_headers(folder: Path) -> dict[str, list[int]]:
    """Return the shapes of a model's tensors by name; raise UserError if the directory lacks them."""
    if not (shapes := read_shapes(folder)):
        raise UserError(f"{folder} has no *.safetensors with tensors: their headers give the size of each tensor")
    return shapes


def shape_of(config: Mapping[str, Any], shapes: Mapping[str, list[int]]) -> ModelShape:
    """Return the size of a model, from its configuration and the shapes of its tensors by name."""
    text, vision = config.get("text_config") or config, config.get("vision_config")
    if not vision:
        raise UserError(f"a model of type {config.get('model_type')!r} has no vision_config: it takes no screenshots")
    if any(key in text for key in ("num_experts", "num_local_experts", "n_routed_experts")):
        raise UserError("a mixture of experts: only the memory of dense models can be estimated")
    counts = {name: math.prod(shape) for name, shape in shapes.items()}
    layers: Counter[str] = Counter()
    for name, count in counts.items():
        if layer := LAYER.match(name):
            layers[layer[0]] += count
    try:
        text_shape = msgspec.convert(text, TextShape)
        vision_shape = msgspec.convert({"depth": vision.get("num_hidden_layers"), **vision}, VisionShape)
    except msgspec.ValidationError as error:
        raise UserError(f"config.json: {error}: the memory of this kind of model can't be estimated") from None
    dtype = config.get("dtype") or text.get("dtype") or config.get("torch_dtype")
    return ModelShape(
        text=text_shape,
        vision=vision_shape,
        parameters=sum(counts.values()),
        layer=max(layers.values(), default=0),
        root=sum(counts.values()) - layers.total(),
        largest_tensor=max(counts.values()),
        width=4 if dtype == "float32" else 2,
        linear=linear_layers(shapes),
    )


def linear_layers(shapes: Mapping[str, list[int]]) -> dict[str, tuple[int, int]]:
    """Return (outputs, inputs) of the language model's linear layers: the matrices among its layers' weights."""
    return {
        name.removesuffix(".weight"): (shape[0], shape[1])
        for name, shape in shapes.items()
        if name.endswith(".weight") and len(shape) == 2 and LAYER.match(name) and not VISION.search(name)
    }
