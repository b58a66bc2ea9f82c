"""Attention of Qwen2.5-VL's vision tower, whose windows transformers computes one by one.

A screenshot of 1932x1092 pixels has 180 windows in each of 28 layers, so a GPU would wait for kernels to be launched.

Shapes: N patches, H heads, D values of a head; W windows of L patches.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLVisionAttention, apply_rotary_pos_emb_vision


class BatchedWindows(Qwen2_5_VLVisionAttention):
    """Attention within windows, all of a length at once; other implementations than ``sdpa`` stay transformers' own."""

    def forward(
        self,
        hidden_states: Tensor,
        cu_seqlens: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        max_seqlen: int | None = None,
        **others: Any,
    ) -> Tensor:
        """Return the layer's output (N, width); windows lie one after the other between ``cu_seqlens`` (W + 1,)."""
        if self.config._attn_implementation != "sdpa" or position_embeddings is None:
            return super().forward(hidden_states, cu_seqlens, position_embeddings, max_seqlen, **others)
        query_NHD, key_NHD, value_NHD = self.qkv(hidden_states).unflatten(-1, (3, self.num_heads, -1)).unbind(1)
        cos_ND, sin_ND = position_embeddings
        query_NHD, key_NHD = apply_rotary_pos_emb_vision(query_NHD, key_NHD, cos_ND, sin_ND)
        starts_W, lengths_W = cu_seqlens[:-1], cu_seqlens.diff()
        places, results = [], []
        for length in lengths_W.unique().tolist():
            place_WL = starts_W[lengths_W == length, None] + torch.arange(length, device=starts_W.device)
            query, key, value = (of_NHD[place_WL].transpose(1, 2) for of_NHD in (query_NHD, key_NHD, value_NHD))
            seen_WHLD = functional.scaled_dot_product_attention(query, key, value, scale=self.scaling)
            places.append(place_WL.flatten())
            results.append(seen_WHLD.transpose(1, 2).flatten(2).flatten(0, 1))
        return self.proj(torch.cat(results)[torch.cat(places).argsort()])
