"""Capacity of vLLM's encoder cache, which keeps the vision tower's output for screenshots. Pure."""

from typing import Any

from dart_streams.config import Config
from dart_streams.screens import FACTOR

BATCHED_TOKENS = 8192
"""Smallest bound of the prompt tokens in an engine step."""
MOST_BYTES = 4 << 30
"""Memory bound of the encoder cache."""


def batched_tokens(config: Config) -> int:
    """Return the maximum prompt tokens of an engine step: at least the screenshots of one prompt."""
    image_tokens = config.policy.max_pixels // FACTOR**2
    return max(BATCHED_TOKENS, image_tokens * config.policy.max_images)


def encoder_capacity(config: Config, image_tokens: int, embedding_bytes: int) -> int:
    """Return the capacity in embeddings: screenshots of ``image_tokens`` of all requests in flight.

    :data:`MOST_BYTES` bounds it, but never below the screenshots of one prompt.
    """
    wanted = config.rollout.max_in_flight * config.policy.max_images * image_tokens
    return max(batched_tokens(config), min(wanted, MOST_BYTES // embedding_bytes))


def embedding_bytes(model_config: Any, itemsize: int) -> int:
    """Return the bytes of an image token's embedding; Qwen3-VL has further ones for its first layers."""
    text = getattr(model_config, "text_config", None) or model_config
    further = getattr(getattr(model_config, "vision_config", None), "deepstack_visual_indexes", None) or ()
    return int(text.hidden_size) * (1 + len(further)) * itemsize
