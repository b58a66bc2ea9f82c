"""Architectures of the tiny policy: Hugging Face configurations and image settings.

All have the same depth, and a given width. Whether and how fast they learn depends on:

- large initial weights (``INITIALIZER_RANGE``), and pixels of a white page near zero (``IMAGE_MEAN``);
- a patch of a whole grid cell (``PATCH``): a quarter of the vision tower's work, with equal learning;
- fast-turning positions (``ROPE_THETA``): the usual base would hardly turn over a grid of 6 columns.

vLLM on a CPU needs heads of 32 (``HEAD``).
"""

from collections.abc import Callable, Mapping
from typing import Any

from transformers import PreTrainedConfig, Qwen2_5_VLConfig, Qwen3VLConfig

WIDTH = 128
HEAD = 32
LAYERS = 3
VISION_LAYERS = 2
INTERMEDIATE = 3
"""Width of the feed-forward layers, in widths."""
INITIALIZER_RANGE = 0.08
ROPE_THETA = 10.0
PATCH = 28
MERGE = 1
GRID = 12
"""Side of Qwen3-VL's learned position grid, which is interpolated to an image's grid."""
IMAGE_MEAN = [1.0, 1.0, 1.0]
IMAGE_STD = [0.2, 0.2, 0.2]
CONTEXT = 16_384
"""Tokens of prompt and answer: room for DART's history of 35 answers of 256 tokens."""
MIN_PIXELS = 56 * 56
MAX_PIXELS = 1280 * 28 * 28

Ids = Mapping[str, int]


def text_settings(vocabulary: int, eos: int, pad: int, width: int = WIDTH) -> dict[str, Any]:
    """Return the language model's settings, shared by the architectures; the width is a multiple of 64."""
    return {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": INTERMEDIATE * width,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": width // HEAD,
        "num_key_value_heads": width // HEAD // 2,
        "max_position_embeddings": CONTEXT,
        "initializer_range": INITIALIZER_RANGE,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA, "mrope_section": [4, 6, 6]},
        "bos_token_id": None,
        "eos_token_id": eos,
        "pad_token_id": pad,
        "tie_word_embeddings": False,
    }


def vision_settings(width: int) -> dict[str, Any]:
    """Return the vision tower's settings, shared by the architectures."""
    return {
        "depth": VISION_LAYERS,
        "hidden_size": width,
        "intermediate_size": INTERMEDIATE * width,
        "num_heads": width // HEAD,
        "out_hidden_size": width,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "initializer_range": INITIALIZER_RANGE,
    }


def token_settings(ids: Ids) -> dict[str, Any]:
    """Return the ids of image tokens."""
    return {
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "tie_word_embeddings": False,
    }


def qwen2_5_vl(text: dict[str, Any], ids: Ids) -> PreTrainedConfig:
    """Return the architecture of Qwen2.5-VL and UI-TARS-1.5."""
    vision = {**vision_settings(text["hidden_size"]), "fullatt_block_indexes": list(range(VISION_LAYERS))}
    return Qwen2_5_VLConfig(text_config=text, vision_config=vision, **token_settings(ids))


def qwen3_vl(text: dict[str, Any], ids: Ids) -> PreTrainedConfig:
    """Return the architecture of Qwen3-VL: the first vision layer's output also enters the language model."""
    text = {**text, "head_dim": HEAD}
    text["rope_parameters"] = {**text["rope_parameters"], "mrope_interleaved": True}
    vision = vision_settings(text["hidden_size"])
    vision |= {"num_position_embeddings": GRID**2, "deepstack_visual_indexes": [0]}
    return Qwen3VLConfig(text_config=text, vision_config=vision, **token_settings(ids))


ARCHITECTURES: Mapping[str, Callable[[dict[str, Any], Ids], PreTrainedConfig]] = {
    "qwen2_5_vl": qwen2_5_vl,
    "qwen3_vl": qwen3_vl,
}
PROCESSORS = {"qwen2_5_vl": "Qwen2_5_VLProcessor", "qwen3_vl": "Qwen3VLProcessor"}


def image_settings(architecture: str) -> dict[str, Any]:
    """Return the content of ``preprocessor_config.json``."""
    return {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": PROCESSORS[architecture],
        "image_mean": IMAGE_MEAN,
        "image_std": IMAGE_STD,
        "min_pixels": MIN_PIXELS,
        "max_pixels": MAX_PIXELS,
        "size": {"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS},
        "patch_size": PATCH,
        "temporal_patch_size": 2,
        "merge_size": MERGE,
    }
