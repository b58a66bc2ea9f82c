"""Shapes of Qwen2.5-VL models, as directories without weights; random weights are made on the device."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from transformers import AutoConfig, AutoModelForImageTextToText, Qwen2_5_VLConfig

from console.sizing.model_files import ModelShape, shape_of
from dart_streams.policy import tiny
from dart_streams.policy.tiny_architectures import image_settings, token_settings
from dart_streams.policy.weights import own_state

PATCH, MERGE = 14, 2
IMAGE_MEAN = [0.48145466, 0.4578275, 0.40821073]
IMAGE_STD = [0.26862954, 0.26130258, 0.27577711]
"""Of the models' own image processor. A patch of zeros would have an infinite gradient in a deep random tower."""
SEED = 0


class Sizes(NamedTuple):
    """Widths and depths of a model; ``vision`` overrides settings of the vision tower."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    tied: bool = False
    rotations: tuple[int, int, int] = (16, 24, 24)
    vision: Mapping[str, Any] = {}


MODELS: Mapping[str, Sizes] = {
    "tiny": Sizes(
        hidden=128,
        layers=3,
        heads=4,
        kv_heads=2,
        intermediate=384,
        vocabulary=4096,
        rotations=(4, 6, 6),
        vision={"depth": 2, "hidden_size": 128, "intermediate_size": 256, "num_heads": 4, "fullatt_block_indexes": [1]},
    ),
    "3b": Sizes(2048, 36, 16, 2, 11008, 151_936, tied=True),
    "7b": Sizes(3584, 28, 28, 4, 18944, 152_064),
}
"""Qwen2.5-VL of 3 and 7 billion parameters (the latter is UI-TARS-1.5-7B's shape), and a tiny one for a CPU."""


def configuration_of(sizes: Sizes) -> Qwen2_5_VLConfig:
    """Return the Hugging Face configuration, with the special tokens of the tiny policy's tokenizer."""
    ids = {token: index for index, token in enumerate(tiny.SPECIAL)}
    text = {
        "vocab_size": sizes.vocabulary,
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.intermediate,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "max_position_embeddings": 128_000,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": list(sizes.rotations)},
        "bos_token_id": None,
        "eos_token_id": ids[tiny.EOS],
        "pad_token_id": ids[tiny.PAD],
        "tie_word_embeddings": sizes.tied,
    }
    vision = {
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "out_hidden_size": sizes.hidden,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31],
        **sizes.vision,
    }
    tokens = {**token_settings(ids), "tie_word_embeddings": sizes.tied}
    return Qwen2_5_VLConfig(text_config=text, vision_config=vision, **tokens)


def write_folder(folder: Path, sizes: Sizes, max_pixels: int) -> None:
    """Write a model directory without weights."""
    folder.mkdir(parents=True)
    tiny.write_tokenizer(folder)
    settings = image_settings("qwen2_5_vl") | {"patch_size": PATCH, "merge_size": MERGE, "max_pixels": max_pixels}
    settings |= {"image_mean": IMAGE_MEAN, "image_std": IMAGE_STD}
    settings["size"] = {"shortest_edge": settings["min_pixels"], "longest_edge": max_pixels}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings), encoding="utf-8")
    configuration_of(sizes).save_pretrained(folder)


@contextlib.contextmanager
def random_weights(device: torch.device) -> Iterator[None]:
    """Within the block a model that is read from a directory gets random weights on ``device`` instead."""

    def from_configuration(folder: Path, dtype: torch.dtype) -> Any:
        with torch.device(device):
            return AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(folder), dtype=dtype)

    torch.manual_seed(SEED)
    with mock.patch.object(AutoModelForImageTextToText, "from_pretrained", from_configuration):
        yield


def model_shape(folder: Path) -> ModelShape:
    """Return the shape that ``doctor --model`` would read from the files of such a model."""
    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)
    return shape_of(config.to_dict(), {name: list(tensor.shape) for name, tensor in own_state(model).items()})
