"""The tiny demo policy: Qwen2.5-VL's architecture from scratch, small enough to learn on two cores.

The same class as UI-TARS-1.5-7B, so that everything built for the one works for the other. What decides whether, and
how fast, it learns:

- pixels of a white page are near zero (``IMAGE_MEAN``), and weights start large enough (``INITIALIZER_RANGE``);
- a patch is a whole cell of the grid (``PATCH``): a quarter of the vision tower's work, and no less is learned;
- positions turn fast (``ROPE_THETA``): the grid has 6 columns, over which the usual base would hardly turn at all;
- coordinates start as points on a line (:func:`align_coordinates`): what is learned of one holds for its neighbours.

vLLM on a CPU wants heads of 32.
"""

import json
import math
from pathlib import Path

import torch
from torch import Tensor
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
from transformers.utils import logging as transformers_logging

from dart_streams.policy import vocabulary

HIDDEN = 128
HEADS = 4
LAYERS = 3
VISION_LAYERS = 2
INTERMEDIATE = 384
INITIALIZER_RANGE = 0.08
ROPE_THETA = 10.0
PATCH = 28
MERGE = 1
WAVE_SIZE = 0.2
PERIODS = (8.0, 512.0)
"""The shortest and the longest wave, in pixels, of which a coordinate's first embedding is made."""
IMAGE_MEAN = [1.0, 1.0, 1.0]
IMAGE_STD = [0.2, 0.2, 0.2]
MIN_PIXELS = 56 * 56
MAX_PIXELS = 1280 * 28 * 28


def build(folder: Path, seed: int = 0) -> None:
    """Write the untrained policy as a Hugging Face directory."""
    folder.mkdir(parents=True)
    vocabulary.write(folder)
    write_preprocessor(folder)
    write_model(folder, seed)


def configuration() -> Qwen2_5_VLConfig:
    """Return the architecture; token ids are those of :mod:`dart_streams.policy.vocabulary`."""
    ids = {token: index for index, token in enumerate(vocabulary.SPECIAL)}
    text = {
        "vocab_size": vocabulary.build().get_vocab_size(),
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS // 2,
        "max_position_embeddings": 4096,
        "initializer_range": INITIALIZER_RANGE,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA, "mrope_section": [4, 6, 6]},
        "bos_token_id": None,
        "eos_token_id": ids[vocabulary.EOS],
        "pad_token_id": ids[vocabulary.PAD],
        "tie_word_embeddings": False,
    }
    vision = {
        "depth": VISION_LAYERS,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_heads": HEADS,
        "out_hidden_size": HIDDEN,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "fullatt_block_indexes": list(range(VISION_LAYERS)),
        "initializer_range": INITIALIZER_RANGE,
    }
    return Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=False,
    )


def write_model(folder: Path, seed: int) -> None:
    """Write configuration and freshly initialised float32 weights; does not touch the global random state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2_5_VLForConditionalGeneration(configuration())
        for embeddings in (model.get_input_embeddings(), model.get_output_embeddings()):
            align_coordinates(embeddings.get_parameter("weight").data)
    model.generation_config.do_sample = True
    transformers_logging.disable_progress_bar()
    model.save_pretrained(folder)


def align_coordinates(weight_VD: Tensor) -> None:
    """Overwrite the rows of each kind of coordinate token with random waves of its value."""
    value_S = torch.arange(vocabulary.SIDE, dtype=torch.float32)
    shortest, longest = map(math.log, PERIODS)
    for rows in vocabulary.coordinates():
        period_D = torch.empty(weight_VD.shape[1]).uniform_(shortest, longest).exp()
        phase_D = torch.rand(weight_VD.shape[1]) * 2 * math.pi
        wave_SD = torch.cos(2 * math.pi * value_S[:, None] / period_D + phase_D)
        weight_VD[rows] = wave_SD * math.sqrt(2) * WAVE_SIZE


def write_preprocessor(folder: Path) -> None:
    """Write how images become patches."""
    settings = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2_5_VLProcessor",
        "image_mean": IMAGE_MEAN,
        "image_std": IMAGE_STD,
        "min_pixels": MIN_PIXELS,
        "max_pixels": MAX_PIXELS,
        "size": {"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS},
        "patch_size": PATCH,
        "temporal_patch_size": 2,
        "merge_size": MERGE,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(settings, indent=2))
