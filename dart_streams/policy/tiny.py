"""The tiny demo policy: Qwen2.5-VL's architecture from scratch, small enough to learn on two cores.

The same class as UI-TARS-1.5-7B, so that everything built for the one works for the other. Three settings decide
whether it learns at all: pixels of a white page must be near zero (``IMAGE_MEAN``), weights must start large enough
(``INITIALIZER_RANGE``), and vLLM on a CPU wants heads of 32.
"""

import json
import shutil
import tempfile
from pathlib import Path

import torch
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
from transformers.utils import logging as transformers_logging

from dart_streams.policy import vocabulary

HIDDEN = 128
HEADS = 4
LAYERS = 3
INTERMEDIATE = 384
INITIALIZER_RANGE = 0.08
IMAGE_MEAN = [1.0, 1.0, 1.0]
IMAGE_STD = [0.2, 0.2, 0.2]
MIN_PIXELS = 56 * 56
MAX_PIXELS = 1280 * 28 * 28


def build(folder: Path, seed: int = 0) -> None:
    """Write the untrained policy as a Hugging Face directory; ``folder`` appears complete or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        vocabulary.write(partial)
        write_preprocessor(partial)
        write_model(partial, seed)
        partial.chmod(0o755)
        partial.replace(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


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
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [4, 6, 6]},
        "bos_token_id": None,
        "eos_token_id": ids[vocabulary.EOS],
        "pad_token_id": ids[vocabulary.PAD],
        "tie_word_embeddings": False,
    }
    vision = {
        "depth": LAYERS,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_heads": HEADS,
        "out_hidden_size": HIDDEN,
        "fullatt_block_indexes": list(range(LAYERS)),
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
    model.generation_config.do_sample = True
    transformers_logging.disable_progress_bar()
    model.save_pretrained(folder)


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
        "patch_size": 14,
        "temporal_patch_size": 2,
        "merge_size": 2,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(settings, indent=2))
