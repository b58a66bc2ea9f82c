"""Attention over all windows of a length at once is that of transformers, which computes them one by one."""

import pytest
import torch
from torch import Tensor
from transformers import Qwen2_5_VLConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLVisionAttention

from trainer.learning import model
from trainer.learning.windows import BatchedWindows

WIDTH, HEADS = 32, 2


def attention(implementation: str = "sdpa") -> Qwen2_5_VLVisionAttention:
    config = Qwen2_5_VLConfig(vision_config={"hidden_size": WIDTH, "num_heads": HEADS}).vision_config
    config._attn_implementation = implementation
    torch.manual_seed(0)
    return Qwen2_5_VLVisionAttention(config)


def output_and_gradients(layer: torch.nn.Module, lengths: list[int]) -> list[Tensor]:
    count = sum(lengths)
    generator = torch.Generator().manual_seed(1)
    patches_NC = torch.randn(count, WIDTH, generator=generator, requires_grad=True)
    angles_ND = torch.randn(count, WIDTH // HEADS, generator=generator)
    ends = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    made_NC = layer(patches_NC, ends, position_embeddings=(angles_ND.cos(), angles_ND.sin()))
    weights_NC = torch.randn(made_NC.shape, generator=generator)
    return [made_NC, *torch.autograd.grad((made_NC * weights_NC).sum(), [patches_NC, *layer.parameters()])]


@pytest.mark.parametrize("lengths", [[6], [4, 4, 4], [4, 2, 4, 1, 2, 4, 7]], ids=str)
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_outputs_and_gradients_are_those_of_windows_one_by_one(lengths, implementation):
    layer = attention(implementation)
    expected = output_and_gradients(layer, lengths)
    policy = torch.nn.Sequential(layer)
    model.prepare_layers(policy)
    assert type(layer) is BatchedWindows
    for ours, theirs in zip(output_and_gradients(layer, lengths), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_windows_of_one_length_are_one_call(monkeypatch):
    layer, calls = attention(), []
    model.prepare_layers(layer)
    real = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda *values, **options: calls.append(values[0].shape) or real(*values, **options),
    )
    output_and_gradients(layer, [4, 2, 4, 4, 2])
    assert [tuple(shape) for shape in calls] == [(2, HEADS, 2, WIDTH // HEADS), (3, HEADS, 4, WIDTH // HEADS)]
