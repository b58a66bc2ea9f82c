"""Writes a small random model of UI-TARS-1.5-7B's architecture: ``python -m tests.path.ui_tars_model FOLDER``.

It has the model's numbers of heads, patches and merged patches. Layers and widths are shrunk, heads to 32 for vLLM on a
CPU. The tokenizer is the tiny policy's with UI-TARS's tokens around boxes.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForImageTextToText, AutoTokenizer, Qwen2_5_VLConfig

from dart_streams.actions.dialects.ui_tars import BOX_TOKENS
from dart_streams.policy import tiny, tiny_architectures
from tests.unit.console.sizing.model_directories import UI_TARS

LAYERS = 2
HEAD = 32
CONTEXT = 32_768
HIDDEN = UI_TARS["num_attention_heads"] * HEAD
VISION: dict[str, Any] = UI_TARS["vision_config"]
VISION_HIDDEN = VISION["num_heads"] * HEAD
MEAN, STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
"""Of Qwen2.5-VL's image processor."""


def shrunk_configuration(vocabulary: int, ids: dict[str, int]) -> Qwen2_5_VLConfig:
    """Return UI-TARS-1.5-7B's configuration with fewer layers, smaller widths and another vocabulary."""
    text = {
        **{name: value for name, value in UI_TARS.items() if not isinstance(value, dict) and name != "torch_dtype"},
        **{"vocab_size": vocabulary, "hidden_size": HIDDEN, "intermediate_size": 2 * HIDDEN},
        **{"num_hidden_layers": LAYERS, "max_position_embeddings": CONTEXT},
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 6, 6]},
        **{"bos_token_id": None, "eos_token_id": ids[tiny.EOS], "pad_token_id": ids[tiny.PAD]},
    }
    text.pop("model_type")
    vision = {
        **{**VISION, "depth": LAYERS, "hidden_size": VISION_HIDDEN, "intermediate_size": 2 * VISION_HIDDEN},
        **{"out_hidden_size": HIDDEN, "fullatt_block_indexes": [LAYERS - 1]},
    }
    return Qwen2_5_VLConfig(text_config=text, vision_config=vision, **tiny_architectures.token_settings(ids))


def write_model(folder: Path) -> None:
    """Write the model into a new folder."""
    folder.mkdir(parents=True)
    tiny.write_tokenizer(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(list(BOX_TOKENS), special_tokens=True)
    tokenizer.model_max_length = CONTEXT
    tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(tiny.CHAT_TEMPLATE)
    sizes = {"patch_size": VISION["patch_size"], "merge_size": VISION["spatial_merge_size"]}
    images = {**tiny_architectures.image_settings("qwen2_5_vl"), **sizes, "image_mean": MEAN, "image_std": STD}
    (folder / "preprocessor_config.json").write_text(json.dumps(images, indent=2))
    torch.manual_seed(0)
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in tiny.SPECIAL}
    AutoModelForImageTextToText.from_config(shrunk_configuration(len(tokenizer), ids)).save_pretrained(folder)


if __name__ == "__main__":
    write_model(Path(sys.argv[1]))
