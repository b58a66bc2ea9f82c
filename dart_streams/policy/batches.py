"""Prompts with answers as padded batches, and the logits of the answers' tokens.

The warm-up, the trainer and the probe share this: the same forward pass, the same mask of tokens, the same trap
avoided (without ``mm_token_type_ids`` transformers silently numbers image tokens like text).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def collate(inputs: Sequence[Mapping[str, Any]], pad: int) -> dict[str, Tensor]:
    """Return one batch of B sequences padded on the right to L tokens, with answers padded to T tokens.

    ``inputs`` are results of :meth:`~dart_streams.policy.rendering.Renderer.training_inputs`. The batch holds
    ``input_ids``, ``attention_mask`` and ``mm_token_type_ids`` (B, L), ``pixel_values`` and ``image_grid_thw`` of all
    images, ``answers`` (B, T) token ids, ``answer_mask`` (B, T) and ``positions`` (B, T): where in its sequence the
    token is whose output predicts each answer token.
    """
    lengths = [len(item["input_ids"]) for item in inputs]
    counts = [length - item["answer_start"] for length, item in zip(lengths, inputs, strict=True)]
    shape, answer_shape = (len(inputs), max(lengths)), (len(inputs), max(counts))
    ids_BL = torch.full(shape, pad, dtype=torch.long)
    batch = {
        "input_ids": ids_BL,
        "attention_mask": torch.zeros(shape, dtype=torch.long),
        "mm_token_type_ids": torch.zeros(shape, dtype=torch.int32),
        "answers": torch.full(answer_shape, pad, dtype=torch.long),
        "answer_mask": torch.zeros(answer_shape, dtype=torch.bool),
        "positions": torch.zeros(answer_shape, dtype=torch.long),
    }
    for row, (item, length, count) in enumerate(zip(inputs, lengths, counts, strict=True)):
        ids_BL[row, :length] = item["input_ids"]
        batch["attention_mask"][row, :length] = 1
        batch["mm_token_type_ids"][row, :length] = item["mm_token_type_ids"]
        batch["answers"][row, :count] = item["input_ids"][item["answer_start"] :]
        batch["answer_mask"][row, :count] = True
        batch["positions"][row, :count] = torch.arange(item["answer_start"] - 1, length - 1)
    for name in ("pixel_values", "image_grid_thw"):
        if parts := [item[name] for item in inputs if name in item]:
            batch[name] = torch.cat(parts)
    return batch


def answer_logits(model: Any, batch: Mapping[str, Tensor]) -> Tensor:
    """Return float32 logits (B, T, V) that predict the answers of a batch from :func:`collate`.

    Only the answers' positions pass the language head. The model's caches are not used.
    """
    names = ("input_ids", "attention_mask", "mm_token_type_ids", "pixel_values", "image_grid_thw")
    if "pixel_values" in batch and "mm_token_type_ids" not in batch:
        raise ValueError("images without mm_token_type_ids: their positions would be wrong")
    hidden_BLD = model.model(**{name: batch[name] for name in names if name in batch}, use_cache=False)[0]
    index_BTD = batch["positions"][..., None].expand(-1, -1, hidden_BLD.shape[-1])
    return model.lm_head(hidden_BLD.gather(1, index_BTD)).float()


def log_probabilities(logits_BTV: Tensor, allowed_V: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the log-softmax over the allowed tokens only, at a sampling temperature; float32, -inf for the others."""
    masked = (logits_BTV.float() / temperature).masked_fill(~allowed_V, -torch.inf)
    return masked.log_softmax(-1)
