"""What ranks can share, from a model's configuration."""

import pytest

from dart_streams.policy.tensor_parallel import device_refusal, sharding_refusal
from tests.unit.console.sizing.model_directories import UI_TARS

NESTED = {"text_config": {"num_attention_heads": 12, "num_key_value_heads": 6}, "vision_config": {"num_heads": 8}}


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_that_divide_all_heads_are_taken(ranks):
    assert sharding_refusal(UI_TARS, ranks) == ""


def test_heads_that_ranks_cannot_share_are_named_with_the_numbers_that_can():
    assert sharding_refusal(UI_TARS, 3) == (
        "rollout.vllm.tensor_parallel = 3 does not divide the 28 attention heads of the language model "
        "(num_attention_heads): set 1 or 2"
    )
    assert "does not divide the 4 key-value heads" in sharding_refusal(UI_TARS, 7)
    assert "does not divide the 8 attention heads of the vision tower (num_heads): set 1 or 2" in sharding_refusal(
        NESTED, 6
    )


def test_more_ranks_than_gpus_are_refused():
    assert device_refusal(2, 2) == ""
    assert "rollout.vllm.tensor_parallel = 4" in device_refusal(4, 2)
    assert "CUDA_VISIBLE_DEVICES" in device_refusal(4, 2)
