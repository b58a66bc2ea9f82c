"""The training process, and tables of other papers' objectives and corrections."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from dart_streams.config import clip_bounds
from dart_streams.config.section import MOST, AboveZero, Count, NonNegative, Optional, Positive, Real, Section
from dart_streams.config.sft import Sft
from topics.values import Version


class DualClip(Optional, frozen=True):
    """Dual-clip PPO (arXiv 1912.09729), for the objectives ``ppo`` and ``gspo``."""

    factor: NonNegative = 0.0
    """Bound of the loss of tokens with a negative advantage, as a multiple of the advantage; above 1, or 0: off."""


class Truncate(Optional, frozen=True):
    """The correction ``truncate``: truncated importance sampling."""

    cap: NonNegative = 1.0
    """The largest importance weight of trainer to engine."""


class Mask(Optional, frozen=True):
    """The correction ``mask``, IcePop's (arXiv 2510.18855): tokens with a ratio out of bounds count as 0."""

    low: Annotated[float, Meta(ge=0, le=1)] = 0.5
    """The smallest ratio that counts."""
    high: Annotated[float, Meta(ge=1, le=MOST)] = 5.0
    """The largest ratio that counts."""


class GeometricMask(Optional, frozen=True):
    """The correction ``geometric_mask``: answers whose geometric mean ratio is out of bounds count as 0."""

    low: Annotated[float, Meta(ge=0, le=1)] = 0.99
    """The smallest mean ratio of trainer to engine that counts."""
    high: Annotated[float, Meta(ge=1, le=MOST)] = 1.01
    """The largest mean ratio that counts."""


class SequenceMask(Optional, frozen=True):
    """The correction ``sequence_mask``: the weight of an answer is its ratio, the product over its tokens.

    An answer whose ratio is out of bounds counts as 0.
    """

    low: Annotated[float, Meta(ge=0, le=1)] = 0.5
    """The smallest ratio of trainer to engine that counts."""
    high: Annotated[float, Meta(ge=1, le=MOST)] = 2.0
    """The largest ratio that counts."""


class Imitate(Optional, frozen=True):
    """Self-imitation (after arXiv 1806.05635): beside each batch, the policy imitates its own past successes.

    Successes are drawn uniformly from past batches, without demonstrations and without a staleness bound.
    """

    trajectories: Count = 0
    """Successes imitated beside each batch, once there are as many; 0: none."""
    weight: AboveZero = 1.0
    """Weight of their mean negative log-likelihood in the loss of the step's first update."""
    recent: Annotated[int, Meta(ge=1, le=4096)] = 400
    """Number of the newest successes to draw from."""


class Publish(Optional, frozen=True):
    """The form of published weight versions."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """The type of published weights; the trainer's own stay float32."""
    full_every: Annotated[int, Meta(ge=1, le=64)] = 1
    """Versions from one full version to the next, with deltas between; 1: all are full. A version whose delta would be
    larger, or which a rollout worker could not load as a delta, is full too. Each record of `weights` names all files
    since the last full version, and a starting worker reads all records, so there are few."""

    def __post_init__(self) -> None:
        """Refuse deltas that are as large as full versions."""
        if self.full_every > 1 and self.dtype == "float32":
            raise ValueError(
                f"full_every = {self.full_every} publishes what changed between versions, and a step changes nearly "
                f'every value in {self.dtype}: set dtype = "bfloat16", or full_every = 1'
            )


class Lora(Optional, frozen=True):
    """LoRA (arXiv 2106.09685): training and versions of low-rank adapters beside frozen weights."""

    rank: Annotated[int, Meta(ge=0, le=1024)] = 0
    """The adapters' rank; 0: none, all weights are trained."""
    alpha: Positive = 16
    """Scale of an adapter's product, divided by the rank."""
    targets: tuple[Annotated[str, Meta(min_length=1)], ...] = ()
    """Adapted linear layers of the language model, by the ends of their names (``q_proj``); empty: all."""

    def __post_init__(self) -> None:
        """Refuse keys that would be ignored."""
        if self.changed and not self.rank:
            named = " and ".join(sorted(self.changed))
            raise ValueError(f"{named} can't be used with rank = 0: set rank, or leave out what is beside it")

    def adapts(self, layer: str) -> bool:
        """Return whether a linear layer of the language model has an adapter."""
        return not self.targets or any(is_target(layer, target) for target in self.targets)


def is_target(layer: str, target: str) -> bool:
    """Return whether a layer's name ends with ``target``, component by component."""
    return f".{layer}".endswith(f".{target}")


def refuse_rendezvous(nodes: int, rendezvous: str) -> None:
    """Refuse several nodes without an address where they meet, and an address that one node would ignore."""
    if nodes > 1 and not rendezvous:
        raise ValueError(
            f'nodes = {nodes} needs rendezvous = "HOST:PORT", an address of one of the nodes that all others reach'
        )
    if rendezvous and nodes == 1:
        raise ValueError(f"rendezvous = {rendezvous!r} can't be used with nodes = 1: set nodes, or leave it out")
    if rendezvous and not 0 < int(rendezvous.rpartition(":")[2]) < 2**16:
        raise ValueError(f"rendezvous = {rendezvous!r} needs a port from 1 to 65535")


class Trainer(Section, frozen=True):
    """The training process: a step takes curated groups and ends with a weight version."""

    processes: Positive = 1
    """Ranks of each node."""
    nodes: Positive = 1
    """Machines that train one model. Start `dart-streams train` with the same file on each; they share `run.state_dir`.
    Ranks of a node share the weights (HSDP); with one rank for each node, all do (FSDP)."""
    rendezvous: Annotated[str, Meta(pattern=r"^(([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5})?$")] = ""
    """`HOST:PORT` where the nodes meet; HOST is one of them, and any of them may write to Kafka."""
    groups_per_step: Positive = 8
    """Curated groups of a step."""
    minibatches: Positive = 1
    """Updates of a pass over the step's groups (PPO's), each on about as many random sequences. Steps of a trajectory
    whose prompts extend each other stay in one update."""
    epochs: Positive = 1
    """Passes over the step's groups."""
    learning_rate: NonNegative = 1.5e-4
    """AdamW's learning rate."""
    optimizer: Literal["adamw", "adamw_8bit"] = "adamw"
    """``adamw_8bit`` keeps AdamW's moments in 8 bits: 2 instead of 8 bytes a trained parameter, rounded."""
    grad_clip: AboveZero = 1.0
    """Maximum norm of the gradient."""
    objective: Literal["ppo", "gspo", "cispo", "dppo_tv", "dppo_kl"] = "ppo"
    """``ppo`` clips each token's ratio, ``gspo`` a sequence's mean ratio, ``cispo`` the weight alone. ``dppo_tv`` and
    ``dppo_kl`` mask tokens by their divergence from the engine's policy, with the correction ``none``."""
    clip_low: NonNegative | None = None
    """Ratios are clipped below 1 - ``clip_low``; by default 0.2, for ``gspo`` 0.0003, for ``cispo`` 1 (no bound). For
    ``dppo_tv`` (0.15) and ``dppo_kl`` (0.05) it bounds the divergence downward."""
    clip_high: NonNegative | None = None
    """Ratios are clipped above 1 + ``clip_high``; by default 0.28, for ``gspo`` 0.0004. For ``dppo_tv`` (0.15) and
    ``dppo_kl`` (0.05) it bounds the divergence upward."""
    aggregate: Literal["tokens", "sequences"] | None = None
    """The loss is a mean over all ``tokens`` of an update, or over the token means of its ``sequences`` (answers); by
    default ``tokens``, for ``gspo`` ``sequences``."""
    correction: Literal["truncate", "mask", "geometric_mask", "sequence_mask", "none"] = "truncate"
    """Correction of trainer against engine: ``truncate`` importance weights, ``mask`` tokens with a ratio out of
    bounds, mask whole answers by their mean ratio (``geometric_mask``) or its product (``sequence_mask``), or
    ``none``."""
    kl_beta: NonNegative = 0.0
    """Weight of the KL divergence from the initial policy; 0 keeps no reference model."""
    entropy_coef: Real = 0.0
    """Weight of the entropy bonus."""
    micro_batch: Positive = 16
    """Rows of a forward pass: prompts with their answers, or with one answer where the model requires that."""
    micro_batch_tokens: Positive = 16_384
    """Tokens of a forward pass, with padding and image tokens; a longer row has its own pass."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """The type in which layers compute; weights, gradients and log-probabilities stay float32."""
    recompute: bool = False
    """Recompute activations in the backward pass: slower, with less memory."""
    offload: Literal["none", "all"] = "none"
    """``all`` keeps parameters, gradients and optimizer state in main memory, where the optimizer makes its step. A GPU
    holds the layers in use."""
    head_tokens: Count = 0
    """Answer tokens whose logits are computed at once, and again in the backward pass; 0: those of all tokens."""
    freeze_vision: bool = False
    """Train the language model only; a screenshot's features are then computed once. Adapters (``lora``) imply it."""
    checkpoint_every: Positive = 1
    """Steps between checkpoints; a killed trainer repeats the steps since the last checkpoint."""
    keep_versions: Positive = 4
    """Stored weight versions, beside those in use."""
    weights_uri: str = ""
    """Location of weight versions, any fsspec URL; empty: the run's folder."""
    checkpoints_uri: str = ""
    """Second place of checkpoints, any fsspec URL, in a folder of the run's name. A checkpoint is complete once it is
    there, and a trainer whose folder is lost resumes from it. Empty: the run's folder only."""
    max_train_steps: Version | None = None
    """The step after which the trainer ends, and with it a run's training."""
    dual_clip: DualClip = DualClip()
    truncate: Truncate = Truncate()
    mask: Mask = Mask()
    geometric_mask: GeometricMask = GeometricMask()
    sequence_mask: SequenceMask = SequenceMask()
    imitate: Imitate = Imitate()
    publish: Publish = Publish()
    lora: Lora = Lora()
    sft: Sft = Sft()

    @property
    def publishes_parts(self) -> bool:
        """Whether versions may depend on earlier ones (deltas, adapters)."""
        return self.publish.full_every > 1 or self.lora.rank > 0

    def __post_init__(self) -> None:
        """Fill in the objective's defaults; refuse combinations that would be ignored."""
        refuse_rendezvous(self.nodes, self.rendezvous)
        low, high = clip_bounds.resolve_bounds(self.objective, self.clip_low, self.clip_high)
        msgspec.structs.force_setattr(self, "clip_low", low)
        msgspec.structs.force_setattr(self, "clip_high", high)
        if self.aggregate is None:
            msgspec.structs.force_setattr(self, "aggregate", "sequences" if self.objective == "gspo" else "tokens")
        if (factor := self.dual_clip.factor) and (self.objective not in ("ppo", "gspo") or factor <= 1):
            raise ValueError(
                f"dual_clip.factor must be above 1 (0 is off), and {self.objective} has none: leave it out with an "
                "objective other than ppo and gspo"
            )
        if self.objective.startswith("dppo") and self.correction != "none":
            raise ValueError(
                f"objective = {self.objective!r} is the ratio of trainer to engine itself, without the correction "
                f'{self.correction!r}: set correction = "none"'
            )
        if self.offload == "all" and self.optimizer == "adamw_8bit":
            raise ValueError(
                'offload = "all" has the optimizer state in main memory, and optimizer = "adamw_8bit" saves memory of '
                "the GPU: set one of them, and leave the other out"
            )
        if self.lora.rank and self.publish.full_every > 1:
            raise ValueError(
                f"lora.rank = {self.lora.rank} publishes adapters, and publish.full_every = {self.publish.full_every} "
                "deltas: set one of them, and leave the other out"
            )
        if self.imitate.trajectories > self.imitate.recent:
            raise ValueError(
                f"imitate.trajectories ({self.imitate.trajectories}) can't be drawn from the imitate.recent "
                f"({self.imitate.recent}) newest successes: raise imitate.recent"
            )
