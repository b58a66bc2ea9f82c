"""Trained model: any Hugging Face image-text-to-text model, sharded by FSDP2."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import structlog
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from transformers import AutoModelForImageTextToText
from transformers.utils import logging as transformers_logging

from dart_streams.config import Trainer
from dart_streams.errors import UserError
from dart_streams.policy import fit, probe, weights
from dart_streams.policy.rendering import ImageInputs, Renderer, refuse_missing
from trainer.data.collate import Collator, MicroBatch
from trainer.data.samples import TrainingSample
from trainer.learning import lora, vision
from trainer.objective import token_logp

log = structlog.get_logger()

PROBE_ANSWERS = (probe.ANSWER, f"{probe.ANSWER} {probe.ANSWER}", "wait()")
SHARING_DIFFERENCE = 1e-3
"""Maximum difference of a token's log-probability in a shared row (nats)."""


class Scorer(nn.Module):
    """Policy that scores given answers, one forward pass a micro-batch (one FSDP root)."""

    forbidden_V: Tensor

    def __init__(self, policy: Any, renderer: Renderer) -> None:
        super().__init__()
        self.policy = policy
        vocabulary = policy.config.get_text_config().vocab_size
        self.register_buffer("forbidden_V", ~renderer.allowed_mask(vocabulary), persistent=False)

    def forward(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Return log-probability and entropy (nats) of each answer token, (B, A) each, as the engine draws them."""
        encoded = vision.encode(self.policy, batch.images)
        features: dict[str, Any] = {}
        if len(batch.shown_S):
            features = {"mm_encoder_outputs": {"image": vision.repeat_features(encoded, batch.counts_I, batch.shown_S)}}
        logits_RKV = self.policy(
            input_ids=batch.input_ids_RL,
            logits_to_keep=batch.input_ids_RL.shape[1] - batch.prompt_width + 1,
            use_cache=False,
            **self._attention(batch),
            **vision.arguments_of(self.policy.forward, {"mm_token_type_ids": batch.token_types_RL}),
            **features,
        ).logits
        logits_BAV = answer_logits(logits_RKV, batch)
        if not features:
            logits_BAV = logits_BAV + vision.zero_of(encoded)
        logp_BA, entropy_BA = token_logp(logits_BAV, batch.answers_BA, self.forbidden_V, batch.temperature_B)
        return logp_BA.clone(), entropy_BA  # FSDP hooks its outputs, which must not be views

    def _attention(self, batch: MicroBatch) -> dict[str, Tensor]:
        """Return the attention mask and positions; models would number padding and treat image tokens as text."""
        prompt = slice(batch.prompt_width)
        positions_RP, next_R = self.prompt_positions(
            batch.input_ids_RL[:, prompt],
            batch.token_types_RL[:, prompt],
            batch.attention_mask_RL[:, prompt],
            batch.images,
            batch.shown_S,
        )
        answers_RW = next_R[:, None] + batch.offset_RL[:, batch.prompt_width :]
        positions_RL = torch.cat([positions_RP, answers_RW.expand(*positions_RP.shape[:-2], -1, -1)], -1)
        mask = shared_attention(batch) if batch.shares_prompts else batch.attention_mask_RL
        return {"attention_mask": mask, "position_ids": positions_RL}

    def prompt_positions(
        self, ids_RP: Tensor, types_RP: Tensor, mask_RP: Tensor, images: ImageInputs, shown_S: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the positions of padded prompts, (R, P) or (3, R, P) by images, and the next position (R,)."""
        index = getattr(self.policy.base_model, "get_rope_index", None)
        if index is None:
            return (mask_RP.cumsum(-1) - 1).clamp(min=0), mask_RP.sum(-1)
        taken = vision.arguments_of(index, images) if len(shown_S) else {}
        shown = {name: value[shown_S] for name, value in taken.items()}
        positions_3RP, _ = index(ids_RP, types_RP, **shown, attention_mask=mask_RP)
        return positions_3RP, positions_3RP.masked_fill(mask_RP == 0, -1).amax((0, 2)) + 1


def shared_attention(batch: MicroBatch) -> Tensor:
    """Return the mask (R, 1, L, L): earlier tokens of the prompt and the same answer; padding attends to itself."""
    columns_L = torch.arange(batch.input_ids_RL.shape[1], device=batch.input_ids_RL.device)
    earlier_LL = columns_L[:, None] >= columns_L
    of_RL1, of_R1L = batch.answer_RL[:, :, None], batch.answer_RL[:, None]
    valid_R1L = batch.attention_mask_RL[:, None].bool()
    allowed_RLL = earlier_LL & valid_R1L & ((of_R1L == 0) | (of_R1L == of_RL1))
    return (allowed_RLL | (columns_L[:, None] == columns_L)).unsqueeze(1)


def answer_logits(logits_RKV: Tensor, batch: MicroBatch) -> Tensor:
    """Return the logits of each answer token, (B, A, V); ``logits_RKV`` start at the last column of the prompts."""
    if not batch.shares_prompts:
        return logits_RKV[:, :-1]
    offset_A = torch.arange(batch.answers_BA.shape[1], device=logits_RKV.device)
    column_BA = (batch.start_B[:, None] + offset_A).masked_fill(offset_A == 0, 0).clamp(max=logits_RKV.shape[1] - 1)
    return logits_RKV[batch.row_B[:, None], column_BA]


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
    trainer settings whose ``lora`` freezes the model and adds adapters. Raises :class:`UserError` if the model cannot
    be trained.
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
    for module in policy.modules():
        if isinstance(module, nn.Conv3d) and module.kernel_size == module.stride:
            module.__class__ = RowProjection
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0  # type: ignore[assignment]
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    if adapted is not None and adapted.lora.rank:
        lora.freeze(policy, adapted.lora, getattr(torch, adapted.publish.dtype))
    scorer = Scorer(policy, renderer).to(device).eval()
    if recompute:
        policy.gradient_checkpointing_enable()
        scorer.train()  # transformers recomputes in training mode only
    return scorer


def shard(scorer: Scorer, mesh: DeviceMesh, dtype: str) -> Scorer:
    """Shard parameters over ``mesh`` layer by layer; compute in ``dtype``, reduce in float32."""
    precision = MixedPrecisionPolicy(param_dtype=getattr(torch, dtype), reduce_dtype=torch.float32)
    layers = set(scorer.policy._no_split_modules or ())
    for module in scorer.policy.modules():
        if type(module).__name__ in layers:
            fully_shard(module, mesh=mesh, mp_policy=precision)
    fully_shard(scorer, mesh=mesh, mp_policy=precision)
    return scorer


def can_share_prompts(scorer: Scorer, renderer: Renderer) -> bool:
    """Return whether answers to one prompt can share a row without changing their scores.

    This needs full attention that accepts a given mask. The probe's prompt is short, so sliding windows are read from
    the configuration. ``scorer`` is not sharded yet, as FSDP would leave parameters gathered.
    """
    if not has_full_attention(scorer.policy.config.get_text_config()):
        log.info("prompts are not shared between answers", reason="not all layers have full attention")
        return False
    prompt = renderer.prompt(probe.probe_turns())
    answers = [renderer.answer_tokens(text) for text in PROBE_ANSWERS]
    items = [TrainingSample(prompt=prompt.token_ids, images=prompt.images, answer=answer) for answer in answers]
    images = {prompt.images[0].sha256: probe.draw_screen()}
    device = scorer.forbidden_V.device
    with torch.no_grad():
        alone_BA, _ = scorer(Collator(renderer).collate(items, images).to(device))
        try:
            shared_BA, _ = scorer(Collator(renderer, share_prompts=True).collate(items, images).to(device))
        except (AttributeError, TypeError, ValueError, RuntimeError) as error:
            log.info("prompts are not shared between answers", reason=f"{type(error).__name__}: {error}")
            return False
    mask_BA = torch.tensor([[place < len(answer) for place in range(alone_BA.shape[1])] for answer in answers])
    most = float((alone_BA - shared_BA).abs().cpu()[mask_BA].max())
    if not most <= SHARING_DIFFERENCE:
        log.info("prompts are not shared between answers", difference=most, allowed=SHARING_DIFFERENCE)
        return False
    return True


def has_full_attention(text: Any) -> bool:
    """Return whether every layer attends to all earlier tokens."""
    kinds = getattr(text, "layer_types", None)
    return all(kind == "full_attention" for kind in kinds) if kinds else not getattr(text, "sliding_window", None)


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
    change = lora.merge_adapters if lora.has_adapters(scorer.policy) else round_parameters
    with torch.no_grad(), change(scorer.policy, dtype):
        try:
            yield
        finally:
            reshard(scorer)  # Otherwise the next pass uses gathered copies of the published weights.


@contextlib.contextmanager
def round_parameters(policy: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Round the parameters to ``dtype`` within the block; a copy restores them."""
    shards = [lora.local_shard(parameter) for parameter in policy.parameters()]
    rounded = [(shard, shard.clone()) for shard in shards if shard.dtype != dtype]
    try:
        for shard, exact in rounded:
            shard.copy_(exact.to(dtype))
        yield
    finally:
        for shard, exact in rounded:
            shard.copy_(exact)


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
