"""Model directories without weights: a config.json, and a safetensors file that is a hole after its header."""

import json
import math
from pathlib import Path
from typing import Any

UI_TARS: dict[str, Any] = {
    "model_type": "qwen2_5_vl",
    "torch_dtype": "bfloat16",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "tie_word_embeddings": False,
    "vision_config": {
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "out_hidden_size": 3584,
        "patch_size": 14,
        "spatial_merge_size": 2,
    },
}
"""Of UI-TARS-1.5-7B, as published: Qwen2.5-VL-7B."""
UI_TARS_PARAMETERS = 8_292_166_656
"""The published number of parameters of Qwen2.5-VL-7B."""


def ui_tars_shapes() -> dict[str, list[int]]:
    """Return the shapes of UI-TARS-1.5-7B's tensors."""
    hidden, wide, shapes = 3584, 18944, {"model.norm.weight": [3584]}
    shapes |= {name: [152064, hidden] for name in ("model.embed_tokens.weight", "lm_head.weight")}
    for layer in range(28):
        at = f"model.layers.{layer}."
        for name, out in (("q_proj", hidden), ("k_proj", 512), ("v_proj", 512)):
            shapes |= {f"{at}self_attn.{name}.weight": [out, hidden], f"{at}self_attn.{name}.bias": [out]}
        shapes |= {f"{at}self_attn.o_proj.weight": [hidden, hidden], f"{at}mlp.down_proj.weight": [hidden, wide]}
        shapes |= {f"{at}mlp.{name}.weight": [wide, hidden] for name in ("gate_proj", "up_proj")}
        shapes |= {f"{at}{name}.weight": [hidden] for name in ("input_layernorm", "post_attention_layernorm")}
    shapes["visual.patch_embed.proj.weight"] = [1280, 3, 2, 14, 14]
    for block in range(32):
        at = f"visual.blocks.{block}."
        shapes |= {f"{at}{name}.weight": [1280] for name in ("norm1", "norm2")}
        for name, out, into in (
            ("attn.qkv", 3840, 1280),
            ("attn.proj", 1280, 1280),
            ("mlp.gate_proj", 3420, 1280),
            ("mlp.up_proj", 3420, 1280),
            ("mlp.down_proj", 1280, 3420),
        ):
            shapes |= {f"{at}{name}.weight": [out, into], f"{at}{name}.bias": [out]}
    shapes["visual.merger.ln_q.weight"] = [1280]
    shapes |= {"visual.merger.mlp.0.weight": [5120, 5120], "visual.merger.mlp.0.bias": [5120]}
    return shapes | {"visual.merger.mlp.2.weight": [3584, 5120], "visual.merger.mlp.2.bias": [3584]}


def write(folder: Path, config: dict[str, Any], *parts: dict[str, list[int]]) -> Path:
    """Write a directory whose tensors are spread over ``parts`` files; behind their headers is a hole."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    for number, shapes in enumerate(parts):
        entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        end = 0
        for name, shape in shapes.items():
            size = 2 * math.prod(shape)
            entries[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
            end += size
        data = json.dumps(entries).encode()
        with (folder / f"model-{number}.safetensors").open("wb") as file:
            file.write(len(data).to_bytes(8, "little") + data)
            file.truncate(file.tell() + end)
    return folder


def ui_tars(folder: Path) -> Path:
    """Write UI-TARS-1.5-7B's directory, in two files, without its weights."""
    shapes = ui_tars_shapes()
    names = list(shapes)
    halves = [names[: len(names) // 2], names[len(names) // 2 :]]
    return write(folder, UI_TARS, *({name: shapes[name] for name in half} for half in halves))
