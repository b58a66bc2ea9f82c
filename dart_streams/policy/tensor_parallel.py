"""Bounds of ``rollout.vllm.tensor_parallel``: what a model's shape and a worker's GPUs allow. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

KEY = "rollout.vllm.tensor_parallel"
TEXT_HEADS = {"num_attention_heads": "attention heads", "num_key_value_heads": "key-value heads"}
VISION_HEADS = {"num_heads": "attention heads", "num_attention_heads": "attention heads"}


def head_counts(model: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the heads that ranks share, by what they are, from the contents of config.json."""
    text, vision = model.get("text_config") or model, model.get("vision_config") or {}
    for part, heads, table in (("language model", TEXT_HEADS, text), ("vision tower", VISION_HEADS, vision)):
        for key, what in heads.items():
            if isinstance(count := table.get(key), int):
                yield f"{what} of the {part} ({key})", count


def sharding_refusal(model: Mapping[str, Any], ranks: int) -> str:
    """Return why ``ranks`` ranks cannot share a model's heads; empty if they can."""
    counts = list(head_counts(model))
    for what, count in counts:
        if count % ranks:
            able = [str(less) for less in range(1, ranks) if not any(other % less for _, other in counts)]
            return f"{KEY} = {ranks} does not divide the {count} {what}: set {' or '.join(able)}"
    return ""


def device_refusal(ranks: int, gpus: int) -> str:
    """Return why a worker with ``gpus`` GPUs cannot have ``ranks`` ranks; empty if it can."""
    if ranks <= gpus:
        return ""
    return (
        f"{KEY} = {ranks} needs {ranks} GPUs for each rollout worker, and this one sees {gpus}: set a smaller number, "
        "or give the worker more GPUs (CUDA_VISIBLE_DEVICES)"
    )
