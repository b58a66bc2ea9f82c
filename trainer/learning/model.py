"""The model being trained: any Hugging Face image-text-to-text directory, sharded over the ranks by FSDP2."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional
from transformers import AutoModelForImageTextToText
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.utils import logging as transformers_logging

from dart_streams.errors import UserError
from dart_streams.policy import probe, weights
from dart_streams.policy.rendering import Renderer, refuse_missing
from trainer.data.collate import Collator, MicroBatch
from trainer.data.samples import TrainingSample
from trainer.objective import token_logp


class Scorer(nn.Module):
    """The policy, scoring given answers. One forward pass a micro-batch, so that FSDP sees one root."""

    forbidden_V: Tensor

    def __init__(self, policy: Any, renderer: Renderer) -> None:
        super().__init__()
        self.policy = policy
        vocabulary = policy.config.get_text_config().vocab_size
        self.register_buffer("forbidden_V", ~renderer.allowed_mask(vocabulary), persistent=False)

    def forward(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Return log-probability and entropy (nats) of each answer token, (B, A) each, as the engine draws them.

        Each distinct image passes the vision tower once, however many prompts show it.
        """
        images_ND = self.policy.get_image_features(batch.patches_NC, batch.grids_I3, return_dict=True).pooler_output
        shown = batch.shown_S.tolist()
        vision: dict[str, Any] = {}
        if shown:
            features: Any = [images_ND[index] for index in shown]  # a tensor of tokens an image
            encoded = BaseModelOutputWithPooling(pooler_output=features)
            vision = {"mm_encoder_outputs": {"image": encoded}, "image_grid_thw": batch.grids_I3[batch.shown_S]}
        width = batch.answers_BA.shape[1]
        # Without mm_token_type_ids the model would silently number image tokens like text.
        logits_BAV = self.policy(
            input_ids=batch.input_ids_BL,
            attention_mask=batch.attention_mask_BL,
            mm_token_type_ids=batch.token_types_BL,
            logits_to_keep=width + 1,
            use_cache=False,
            **vision,
        ).logits[:, :-1]
        if not shown:
            logits_BAV = logits_BAV + 0.0 * sum(image.sum() for image in images_ND)
        logp_BA, entropy_BA = token_logp(logits_BAV, batch.answers_BA, self.forbidden_V, batch.temperature_B)
        return logp_BA.clone(), entropy_BA  # FSDP hooks its outputs, which must not be views


class RowProjection(nn.Conv3d):
    """A convolution over patches that were cut out before: a matrix product, several times cheaper on a CPU."""

    def forward(self, patches_NC: Tensor) -> Tensor:
        """Return (N, D) of patches of exactly the kernel's size, in any shape (N, ...)."""
        return functional.linear(patches_NC.flatten(1), self.weight.flatten(1), self.bias)


def load(
    folder: Path, renderer: Renderer, device: torch.device, recompute: bool = False, version: Path | None = None
) -> Scorer:
    """Return the policy of a Hugging Face directory in float32, with dropout off, not yet sharded.

    With ``recompute`` the backward pass computes a layer's activations again instead of keeping them. With the
    directory of a ``version`` it has that version's weights. Raises :class:`UserError` if there is no such model.
    """
    refuse_missing(folder)
    transformers_logging.disable_progress_bar()
    try:
        policy = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    except (OSError, ValueError) as error:
        raise UserError(f"policy.path: {folder} is not a model that can be trained: {error}") from error
    if version is not None:
        weights.load(policy, version)
    for module in policy.modules():
        if isinstance(module, nn.Conv3d) and module.kernel_size == module.stride:
            module.__class__ = RowProjection
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0  # type: ignore[assignment]
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    scorer = Scorer(policy, renderer).to(device).eval()
    if recompute:
        policy.gradient_checkpointing_enable()
        scorer.train()  # transformers recomputes in training mode only
    return scorer


def shard(scorer: Scorer, mesh: DeviceMesh, dtype: str) -> Scorer:
    """Shard parameters over the ranks of ``mesh``, layer by layer; layers compute in ``dtype``, sums are float32."""
    precision = MixedPrecisionPolicy(param_dtype=getattr(torch, dtype), reduce_dtype=torch.float32)
    layers = set(scorer.policy._no_split_modules or ())
    for module in scorer.policy.modules():
        if type(module).__name__ in layers:
            fully_shard(module, mesh=mesh, mp_policy=precision)
    fully_shard(scorer, mesh=mesh, mp_policy=precision)
    return scorer


def gathered(policy: nn.Module, keep: bool) -> Mapping[str, Tensor]:
    """Return the whole state on the CPU where ``keep``, elsewhere nothing. Collective, one tensor at a time."""
    state: dict[str, Tensor] = {}
    for name, value in policy.state_dict().items():
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        if keep:
            state[name] = whole.detach().cpu()
    return state


def probe_of(scorer: Scorer, renderer: Renderer, dtype: str = "float32") -> probe.Probe:
    """Return what the scorer's present weights, computing in ``dtype``, make of the fixed probe. Collective."""
    prompt, answer = renderer.prompt(probe.turns()), renderer.answer_tokens(probe.ANSWER)
    item = TrainingSample(prompt=prompt.token_ids, images=prompt.images, answer=answer)
    batch = Collator(renderer).collate([item], {prompt.images[0].sha256: probe.screen()})
    with torch.no_grad():
        logp_BA, _ = scorer(batch.to(scorer.forbidden_V.device))
    return probe.Probe(prompt=prompt.token_ids, tokens=answer, logprobs=logp_BA[0].tolist(), dtype=dtype)
