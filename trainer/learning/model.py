"""Trained model: any Hugging Face image-text-to-text model, sharded by FSDP2."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForImageTextToText
from transformers.utils import logging as transformers_logging

from dart_streams.config import Trainer
from dart_streams.errors import UserError
from dart_streams.policy import fit, probe, weights
from dart_streams.policy.model_folder import refuse_missing
from dart_streams.policy.rendering import ImageInputs, Renderer
from trainer.data.collate import Collator, MicroBatch
from trainer.data.samples import TrainingSample
from trainer.learning import frozen_vision, lora, vision, windows
from trainer.learning.frozen_vision import FeatureCache
from trainer.objective import token_logp


class Scorer(nn.Module):
    """Policy that scores given answers, one forward pass a micro-batch (one FSDP root)."""

    forbidden_V: Tensor

    def __init__(self, policy: Any, renderer: Renderer) -> None:
        super().__init__()
        self.policy = policy
        self.features: FeatureCache | None = None
        """Features of a frozen vision tower."""
        self.head_tokens = 0
        """Answer tokens of a chunk of the output layer; 0: all at once, in the model's own forward pass."""
        vocabulary = policy.config.get_text_config().vocab_size
        self.register_buffer("forbidden_V", ~renderer.allowed_mask(vocabulary), persistent=False)

    def forward(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Return log-probability and entropy (nats) of each answer token, (B, A) each, as the engine draws them."""
        images = self.features
        encoded = images.encode(self.policy, batch) if images else vision.encode(self.policy, batch.images)
        features: dict[str, Any] = {}
        if len(batch.shown_S):
            features = {"mm_encoder_outputs": {"image": vision.repeat_features(encoded, batch.counts_I, batch.shown_S)}}
        inputs = {
            "input_ids": batch.input_ids_RL,
            "use_cache": False,
            **self._attention(batch),
            **vision.arguments_of(self.policy.forward, {"mm_token_type_ids": batch.token_types_RL}),
            **features,
        }
        if self.head_tokens:
            outputs_RKX = self.policy.base_model(**inputs).last_hidden_state[:, batch.kept_K]
        else:
            outputs_RKX = self.policy(logits_to_keep=batch.kept_K, **inputs).logits
        outputs_NX = outputs_RKX.flatten(0, 1)
        if batch.logits_N is not None:
            outputs_NX = outputs_NX[batch.logits_N]
        if not features:
            outputs_NX = outputs_NX + vision.zero_of(encoded)
        present_BA = batch.present_BA
        temperature_N = batch.temperature_B[:, None].expand_as(present_BA)[present_BA]
        scored = self._scored_in_chunks if self.head_tokens else self._scored
        scores = scored(outputs_NX, batch.answers_BA[present_BA], temperature_N)
        logp_BA, entropy_BA = (of.new_zeros(present_BA.shape).masked_scatter(present_BA, of) for of in scores)
        return logp_BA, entropy_BA

    def _scored(self, logits_NV: Tensor, tokens_N: Tensor, temperature_N: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probability and entropy (N, 1) of tokens whose logits are given."""
        return token_logp(logits_NV[:, None], tokens_N[:, None], self.forbidden_V, temperature_N)

    def _scored_in_chunks(self, states_ND: Tensor, tokens_N: Tensor, temperature_N: Tensor) -> list[Tensor]:
        """Return the same from last hidden states; the backward pass computes each chunk's logits again."""
        head = self.policy.get_output_embeddings()

        def score(states_nD: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
            return self._scored(head(states_nD), *rest)

        parts = zip(*(of_N.split(self.head_tokens) for of_N in (states_ND, tokens_N, temperature_N)), strict=True)
        scored = [checkpoint(score, *part, use_reentrant=False, preserve_rng_state=False) for part in parts]
        return [torch.cat(of_chunks) for of_chunks in zip(*scored, strict=True)]

    def _attention(self, batch: MicroBatch) -> dict[str, Tensor]:
        """Return the attention mask and positions; models would number padding and treat image tokens as text."""
        trunk, after = slice(batch.trunk_width), slice(batch.trunk_width, None)
        positions_RP, next_RP = self.prompt_positions(
            batch.input_ids_RL[:, trunk],
            batch.token_types_RL[:, trunk],
            batch.attention_mask_RL[:, trunk],
            batch.images,
            batch.shown_S,
        )
        next_RW = next_RP.gather(1, (batch.reach_RL[:, after] - 1).clamp(min=0))
        branches_RW = next_RW + batch.offset_RL[:, after]
        positions_RL = torch.cat([positions_RP, branches_RW.expand(*positions_RP.shape[:-2], -1, -1)], -1)
        mask = branch_attention(batch) if batch.needs_mask else batch.attention_mask_RL
        return {"attention_mask": mask, "position_ids": positions_RL}

    def prompt_positions(
        self, ids_RP: Tensor, types_RP: Tensor, mask_RP: Tensor, images: ImageInputs, shown_S: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the positions of padded prompts, (R, P) or (3, R, P) by images, and the next one after each (R, P)."""
        index = getattr(self.policy.base_model, "get_rope_index", None)
        if index is None:
            count_RP = mask_RP.cumsum(-1)
            return (count_RP - 1).clamp(min=0), count_RP
        taken = vision.arguments_of(index, images) if len(shown_S) else {}
        shown = {name: value[shown_S] for name, value in taken.items()}
        positions_3RP, _ = index(ids_RP, types_RP, **shown, attention_mask=mask_RP)
        return positions_3RP, positions_3RP.masked_fill(mask_RP == 0, -1).amax(0).cummax(-1).values + 1


def branch_attention(batch: MicroBatch) -> Tensor:
    """Return the mask (R, 1, L, L): earlier tokens of the own prompt and branch; padding attends to itself."""
    columns_L = torch.arange(batch.input_ids_RL.shape[1], device=batch.input_ids_RL.device)
    earlier_LL = columns_L[:, None] >= columns_L
    own_RLL = batch.branch_RL[:, :, None] == batch.branch_RL[:, None]
    prompt_RLL = (batch.branch_RL[:, None] == 0) & (columns_L < batch.reach_RL[:, :, None])
    allowed_RLL = earlier_LL & batch.attention_mask_RL[:, None].bool() & (own_RLL | prompt_RLL)
    return (allowed_RLL | (columns_L[:, None] == columns_L)).unsqueeze(1)


class RowProjection(nn.Conv3d):
    """Convolution over already cut patches as a matrix product, several times faster on a CPU."""

    def forward(self, patches_NC: Tensor) -> Tensor:
        """Return (N, D) of kernel-sized patches (N, ...); other inputs are convolved."""
        if patches_NC[0].numel() != self.weight[0].numel():
            return super().forward(patches_NC)
        return functional.linear(patches_NC.flatten(1), self.weight.flatten(1), self.bias)


def load(
    folder: Path,
    renderer: Renderer,
    device: torch.device,
    recompute: bool = False,
    version: Path | None = None,
    adapted: Trainer | None = None,
) -> Scorer:
    """Return the policy of a Hugging Face directory in float32, without dropout, not sharded.

    ``recompute`` enables activation checkpointing. ``version`` is a directory with other weights. ``adapted`` are
    trainer settings whose ``lora`` freezes the model and adds adapters, or whose ``freeze_vision`` freezes the vision
    tower. Raises :class:`UserError` if the model cannot be trained.
    """
    refuse_missing(folder)
    transformers_logging.disable_progress_bar()
    try:
        policy = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    except (OSError, ValueError) as error:
        raise UserError(f"policy.path: {folder} cannot be trained: {error}") from error
    fit.refuse_unusable(type(policy))
    if version is not None:
        weights.load(policy, version)
    prepare_layers(policy)
    if adapted is not None and adapted.lora.rank:
        lora.freeze(policy, adapted.lora, getattr(torch, adapted.publish.dtype))
    elif adapted is not None and adapted.freeze_vision:
        frozen_vision.freeze(policy, renderer, getattr(torch, adapted.publish.dtype))
    scorer = Scorer(policy, renderer).to(device).eval()
    if recompute:
        policy.gradient_checkpointing_enable()
        scorer.train()  # transformers recomputes in training mode only
    return scorer


def prepare_layers(policy: nn.Module) -> None:
    """Exchange slow layers for equal ones, and turn dropout off."""
    for module in policy.modules():
        if isinstance(module, nn.Conv3d) and module.kernel_size == module.stride:
            module.__class__ = RowProjection
        if type(module) is windows.Qwen2_5_VLVisionAttention:
            module.__class__ = windows.BatchedWindows
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0  # type: ignore[assignment]
        if isinstance(module, nn.Dropout):
            module.p = 0.0


def shard(scorer: Scorer, mesh: DeviceMesh, dtype: str, offload: str = "none") -> Scorer:
    """Shard parameters over ``mesh`` layer by layer; compute in ``dtype``, reduce in float32.

    With ``offload`` "all" shards, their gradients and so their optimizer state are in main memory.
    """
    precision = MixedPrecisionPolicy(param_dtype=getattr(torch, dtype), reduce_dtype=torch.float32)
    pinned = mesh.device_type != "cpu"
    place = CPUOffloadPolicy(pin_memory=pinned) if offload == "all" else OffloadPolicy()
    layers = set(scorer.policy._no_split_modules or ())
    for module in scorer.policy.modules():
        if type(module).__name__ in layers:
            fully_shard(module, mesh=mesh, mp_policy=precision, offload_policy=place)
    fully_shard(scorer, mesh=mesh, mp_policy=precision, offload_policy=place)
    return scorer


def gather_state(policy: nn.Module, keep: bool, dtype: torch.dtype | None = None) -> Mapping[str, Tensor]:
    """Return the whole state on the CPU where ``keep``, without adapters, floats rounded to ``dtype``. Collective."""
    state: dict[str, Tensor] = {}
    for own, value in weights.own_state(policy).items():
        name = lora.own_name(own)
        if name is None:
            continue
        whole = lora.full_tensor(value)
        if keep:
            # Merged weights are temporary, so they are copied.
            whole = whole.clone() if name != own else whole
            rounded = whole.to(dtype) if dtype and whole.is_floating_point() else whole
            state[name] = rounded.cpu()
    return state


@contextlib.contextmanager
def as_published(scorer: Scorer, dtype: torch.dtype) -> Iterator[None]:
    """Hold the published weights within the block: rounded, with adapters merged. Collective."""
    reshard(scorer)
    change = lora.merged_shards if lora.has_adapters(scorer.policy) else rounded_shards
    exact: list[tuple[Tensor, Tensor]] = []
    with torch.no_grad():
        try:
            for shard, published in change(scorer.policy, dtype):
                exact.append((shard, shard.clone()))
                shard.copy_(published)
            yield
        finally:
            for shard, value in exact:
                shard.copy_(value)
            reshard(scorer)  # Otherwise the next pass uses gathered copies of the published weights.


def rounded_shards(policy: nn.Module, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield this rank's shards of another type than ``dtype``, and their values rounded to it."""
    shards = map(lora.local_shard, policy.parameters())
    return ((shard, shard.to(dtype)) for shard in shards if shard.dtype != dtype)


def reshard(scorer: Scorer) -> None:
    """Reshard the root's parameters, which a forward pass leaves gathered."""
    if isinstance(scorer, FSDPModule):
        scorer.reshard()


def probe_of(scorer: Scorer, renderer: Renderer, dtype: str = "float32") -> probe.Probe:
    """Return the scorer's log-probabilities of the fixed probe, computed in ``dtype``. Collective."""
    prompt, answer = renderer.prompt(probe.probe_turns()), renderer.answer_tokens(probe.ANSWER)
    item = TrainingSample(prompt=prompt.token_ids, images=prompt.images, answer=answer)
    batch = Collator(renderer).collate([item], {prompt.images[0].sha256: probe.draw_screen()})
    with torch.no_grad():
        logp_BA, _ = scorer(batch.to(scorer.forbidden_V.device))
    return probe.Probe(prompt=prompt.token_ids, tokens=answer, logprobs=logp_BA[0].tolist(), dtype=dtype)
