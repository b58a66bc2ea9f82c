"""The capacity of vLLM's encoder cache."""

from pathlib import Path
from types import SimpleNamespace

from dart_streams.config import load, parse
from dart_streams.policy.encoder_cache import MOST_BYTES, batched_tokens, embedding_bytes, encoder_capacity

UI_TARS = Path("deploy/config/ui-tars/eight-gpus.toml")
IMAGE = 2691
"""Tokens of a screenshot of 1932 x 1092 pixels."""


def test_the_screenshots_of_all_requests_in_flight_fit():
    config = load(UI_TARS)
    assert encoder_capacity(config, IMAGE, 3584 * 2) == 32 * 5 * IMAGE == 430_560
    assert MOST_BYTES > 430_560 * 3584 * 2


def test_memory_bounds_the_cache_but_a_prompt_always_fits():
    config = load(UI_TARS)
    assert encoder_capacity(config, IMAGE, 4 * 3584 * 2) == MOST_BYTES // (4 * 3584 * 2)
    assert encoder_capacity(config, IMAGE, MOST_BYTES) == batched_tokens(config) >= 5 * IMAGE
    assert encoder_capacity(parse({"rollout": {"max_in_flight": 1}}), 48, 512) == 8192


def test_an_embedding_has_the_models_width_for_each_layer_that_reads_it():
    plain = SimpleNamespace(text_config=SimpleNamespace(hidden_size=3584), vision_config=SimpleNamespace())
    assert embedding_bytes(plain, 2) == 7168
    deep = SimpleNamespace(hidden_size=128, vision_config=SimpleNamespace(deepstack_visual_indexes=[0, 5, 8]))
    assert embedding_bytes(deep, 4) == 128 * 4 * 4
