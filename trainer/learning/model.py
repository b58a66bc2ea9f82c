"""The model being trained: any Hugging Face image-text-to-text directory, sharded over the ranks by FSDP2."""

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
"""Nats by which a token's log-probability may differ in a shared row: rounding."""


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
        """Return the model's arguments for which tokens attend to which, and for their positions.

        Positions are always given: models would number padding, and without token types image tokens like text.
        """
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
        """Return the positions of padded prompts, and the position (R,) of what follows each.

        Positions are (R, P), or (3, R, P) where the model has positions of several dimensions: then it is given what
        it takes for them of ``images``, which has a row an image.
        """
        index = getattr(self.policy.base_model, "get_rope_index", None)
        if index is None:
            return (mask_RP.cumsum(-1) - 1).clamp(min=0), mask_RP.sum(-1)
        taken = vision.arguments_of(index, images) if len(shown_S) else {}
        shown = {name: value[shown_S] for name, value in taken.items()}
        positions_3RP, _ = index(ids_RP, types_RP, **shown, attention_mask=mask_RP)
        return positions_3RP, positions_3RP.masked_fill(mask_RP == 0, -1).amax((0, 2)) + 1


def shared_attention(batch: MicroBatch) -> Tensor:
    """Return which tokens attend to which, (R, 1, L, L): to earlier ones of the prompt and of their own answer.

    Padding attends to itself, for a softmax over nothing is not a number.
    """
    columns_L = torch.arange(batch.input_ids_RL.shape[1], device=batch.input_ids_RL.device)
    earlier_LL = columns_L[:, None] >= columns_L
    of_RL1, of_R1L = batch.answer_RL[:, :, None], batch.answer_RL[:, None]
    valid_R1L = batch.attention_mask_RL[:, None].bool()
    allowed_RLL = earlier_LL & valid_R1L & ((of_R1L == 0) | (of_R1L == of_RL1))
    return (allowed_RLL | (columns_L[:, None] == columns_L)).unsqueeze(1)


def answer_logits(logits_RKV: Tensor, batch: MicroBatch) -> Tensor:
    """Return the logits that predict each token of the answers, (B, A, V).

    ``logits_RKV`` are those of the last column of the prompts, which predicts every first token, and of the answers'.
    """
    if not batch.shares_prompts:
        return logits_RKV[:, :-1]
    offset_A = torch.arange(batch.answers_BA.shape[1], device=logits_RKV.device)
    column_BA = (batch.start_B[:, None] + offset_A).masked_fill(offset_A == 0, 0).clamp(max=logits_RKV.shape[1] - 1)
    return logits_RKV[batch.row_B[:, None], column_BA]


class RowProjection(nn.Conv3d):
    """A convolution over patches that were cut out before: a matrix product, several times cheaper on a CPU."""

    def forward(self, patches_NC: Tensor) -> Tensor:
        """Return (N, D) of patches of exactly the kernel's size, in any shape (N, ...); of others what they were."""
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
    """Return the policy of a Hugging Face directory in float32, with dropout off, not yet sharded.

    With ``recompute`` the backward pass computes a layer's activations again instead of keeping them. With the
    directory of a ``version`` it has that version's weights. With the settings of a trainer it is ``adapted``: frozen,
    with adapters as ``trainer.lora`` has them, if it does. Raises :class:`UserError` if there is no such model.
    """
    refuse_missing(folder)
    transformers_logging.disable_progress_bar()
    try:
        policy = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    except (OSError, ValueError) as error:
        raise UserError(f"policy.path: {folder} is not a model that can be trained: {error}") from error
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
    """Shard parameters over the ranks of ``mesh``, layer by layer; layers compute in ``dtype``, sums are float32."""
    precision = MixedPrecisionPolicy(param_dtype=getattr(torch, dtype), reduce_dtype=torch.float32)
    layers = set(scorer.policy._no_split_modules or ())
    for module in scorer.policy.modules():
        if type(module).__name__ in layers:
            fully_shard(module, mesh=mesh, mp_policy=precision)
    fully_shard(scorer, mesh=mesh, mp_policy=precision)
    return scorer


def can_share_prompts(scorer: Scorer, renderer: Renderer) -> bool:
    """Say whether several answers to one prompt can share a row: whether their scores are those of rows of their own.

    They are where full attention is all that mixes tokens and takes a mask as it is; other models score each answer in
    a row of its own. The prompt scored here is short, so a sliding window is known from the configuration alone.
    ``scorer`` is not sharded yet: FSDP would leave parameters unsharded after a pass forward alone.
    """
    if not has_full_attention(scorer.policy.config.get_text_config()):
        log.info("each answer is scored with a prompt of its own", reason="not all layers have full attention")
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
            log.info("each answer is scored with a prompt of its own", reason=f"{type(error).__name__}: {error}")
            return False
    mask_BA = torch.tensor([[place < len(answer) for place in range(alone_BA.shape[1])] for answer in answers])
    most = float((alone_BA - shared_BA).abs().cpu()[mask_BA].max())
    if not most <= SHARING_DIFFERENCE:
        log.info("each answer is scored with a prompt of its own", difference=most, allowed=SHARING_DIFFERENCE)
        return False
    return True


def has_full_attention(text: Any) -> bool:
    """Say whether every layer of a language model's configuration attends to all earlier tokens."""
    kinds = getattr(text, "layer_types", None)
    return all(kind == "full_attention" for kind in kinds) if kinds else not getattr(text, "sliding_window", None)


def gather_state(policy: nn.Module, keep: bool, dtype: torch.dtype | None = None) -> Mapping[str, Tensor]:
    """Return the whole state on the CPU where ``keep``, elsewhere nothing. Collective, one tensor at a time.

    Names are the model's own, without those of adapters. With ``dtype`` floating point tensors are rounded to it, to
    the nearest and ties to even, before they are copied.
    """
    state: dict[str, Tensor] = {}
    for found, value in weights.own_state(policy).items():
        name = lora.own_name(found)
        if name is None:
            continue
        whole = lora.full_tensor(value)
        if keep:
            # A layer's weights are replaced for a while by the merged ones: they are copied even where they are here.
            whole = whole.clone() if name != found else whole
            rounded = whole.to(dtype) if dtype and whole.is_floating_point() else whole
            state[name] = rounded.cpu()
    return state


@contextlib.contextmanager
def round_parameters(scorer: Scorer, dtype: torch.dtype) -> Iterator[None]:
    """Have the scorer's parameters rounded to ``dtype``, as they are published, within the block.

    The unrounded ones are kept meanwhile, at the cost of one more set of them: gradients have been freed by then.
    """
    reshard(scorer)
    own = [lora.local_shard(parameter) for parameter in scorer.parameters()]
    if all(tensor.dtype == dtype for tensor in own):
        yield
        return
    kept = [tensor.clone() for tensor in own]
    try:
        for tensor in own:
            tensor.copy_(tensor.to(dtype))
        yield
    finally:
        reshard(scorer)  # or the next pass would go on with what was gathered of the rounded ones
        for tensor, before in zip(own, kept, strict=True):
            tensor.copy_(before)


def as_published(scorer: Scorer, dtype: torch.dtype) -> contextlib.AbstractContextManager[None]:
    """Have the scorer's parameters be what is published, within the block: rounded, with its adapters merged."""
    return adapters_merged(scorer, dtype) if lora.has_adapters(scorer.policy) else round_parameters(scorer, dtype)


@contextlib.contextmanager
def adapters_merged(scorer: Scorer, dtype: torch.dtype) -> Iterator[None]:
    """Have the scorer's adapters in its weights, rounded to ``dtype`` as the frozen ones are. Collective."""
    reshard(scorer)
    with torch.no_grad(), lora.merge_adapters(scorer.policy, dtype):
        yield
        reshard(scorer)


def reshard(scorer: Scorer) -> None:
    """Have the root's parameters be shards again, which a pass forward leaves gathered."""
    if isinstance(scorer, FSDPModule):
        scorer.reshard()


def probe_of(scorer: Scorer, renderer: Renderer, dtype: str = "float32") -> probe.Probe:
    """Return what the scorer's present weights, computing in ``dtype``, make of the fixed probe. Collective."""
    prompt, answer = renderer.prompt(probe.probe_turns()), renderer.answer_tokens(probe.ANSWER)
    item = TrainingSample(prompt=prompt.token_ids, images=prompt.images, answer=answer)
    batch = Collator(renderer).collate([item], {prompt.images[0].sha256: probe.draw_screen()})
    with torch.no_grad():
        logp_BA, _ = scorer(batch.to(scorer.forbidden_V.device))
    return probe.Probe(prompt=prompt.token_ids, tokens=answer, logprobs=logp_BA[0].tolist(), dtype=dtype)
