"""Learner of every rank: model, optimizer, and the step on a batch of groups."""

import contextlib
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import structlog
import torch
from torch import Tensor

from dart_streams.clock import since_ms
from dart_streams.config import Trainer
from dart_streams.policy import finite, weights
from dart_streams.policy.adapters import Adapter
from dart_streams.policy.probe import Probe
from dart_streams.policy.rendering import Renderer
from topics.trained import TrainedToken
from trainer.data.collate import Collator, MicroBatch, PassCost
from trainer.data.samples import ReadyGroup, TrainingSample
from trainer.hooks import DART, TrainingRules
from trainer.learning import critic, lora, minibatches, model, optimizers, step, supported_rows, top_tokens
from trainer.learning.critic import Assessment
from trainer.learning.frozen_vision import FeatureCache, digest_frozen
from trainer.learning.imitation_term import ImitationTerm, SftUpdate
from trainer.learning.top_tokens import TokenPart, TopTokens
from trainer.objective import count, masked_sum
from trainer.ranks import Ranks

log = structlog.get_logger()


LONG_ROW = 1024
"""Tokens above which a row on a CPU is faster alone: padding and its mask cost more than a larger product gains."""
PASS_TOKENS = 128
"""Padded tokens that cost as much as one more pass on a CPU; on a GPU fewer passes are faster."""
MicroBatches = Sequence[Sequence[TrainingSample]]
"""Samples of each micro-batch; empty ones keep ranks in step."""


class WeightSnapshot(NamedTuple):
    """Weights of a version, on rank 0 only: all ``tensors``, the ``probe``, and the ``adapter`` if they have one."""

    tensors: Mapping[str, Tensor]
    probe: Probe
    adapter: Adapter | None = None


class StepResult(NamedTuple):
    """Result of a step of ``updates``; ``lost`` ones had no finite gradient.

    ``updated`` is false if there were no others.
    """

    updated: bool
    metrics: dict[str, float]
    tokens: int
    sequences: int
    train_ms: float
    updates: int = 0
    lost: int = 0
    top_tokens: Sequence[TrainedToken] = ()


class PlannedUpdate(NamedTuple):
    """Micro-batches, their log-probabilities before the step, and the divisor of their loss.

    Without ``old_BA`` they are those of the update itself.
    """

    batches: Iterable[MicroBatch]
    old_BA: Iterable[Tensor] | None
    total: float


class Update(NamedTuple):
    """Sums of an update on this rank, and its global gradient norm before clipping."""

    sums: step.Sums
    grad_norm: float


def never_stop() -> bool:
    """Return False: an update that cannot be aborted."""
    return False


class Learner:
    """Trains the model in ``folder``, or a ``version`` of its weights; ``kl_beta`` adds a frozen reference.

    ``rules`` are bound; those of the loss and the critic apply. Collective.
    """

    def __init__(
        self,
        folder: Path,
        renderer: Renderer,
        settings: Trainer,
        ranks: Ranks,
        version: Path | None = None,
        rules: TrainingRules = DART,
    ) -> None:
        self.folder = folder
        self.rules = rules
        self.settings = settings
        self.ranks = ranks
        self.published: torch.dtype = getattr(torch, settings.publish.dtype)
        mesh = ranks.mesh()
        scorer = model.load(folder, renderer, ranks.device, settings.recompute, version, settings)
        bounds = (LONG_ROW, PASS_TOKENS) if ranks.device.type == "cpu" else ()
        self.collator = Collator(renderer, supported_rows.find_kinds(scorer, renderer), *bounds)
        supported_rows.split_head(scorer, renderer, settings.head_tokens)
        self.frozen_sha256 = digest_frozen(scorer.policy) if settings.freeze_vision and ranks.first else ""
        """Digest of the adapter base, KL reference or else frozen tower on rank 0; empty if there are none."""
        self.scorer = model.shard(scorer, mesh, settings.dtype, settings.offload)
        if settings.lora.rank or settings.freeze_vision:
            self.scorer.features = FeatureCache(ranks.any)
        self.reference: model.Scorer | None = None
        if settings.kl_beta:
            frozen = model.load(folder, renderer, ranks.device).requires_grad_(False)
            self.frozen_sha256 = weights.digest_tensors(weights.own_state(frozen.policy)) if ranks.first else ""
            frozen.head_tokens = settings.head_tokens
            self.reference = model.shard(frozen, mesh, settings.dtype, settings.offload)
            self.reference.features = FeatureCache(ranks.any)
        self.critic = critic.build(self.scorer, rules, ranks)
        self.optimizer = optimizers.build(self.scorer.parameters(), settings, ranks.device)
        self.base: Mapping[str, Tensor] = {}
        """Frozen weights under adapters as published, on rank 0."""
        if settings.lora.rank:
            self.base = model.gather_state(self.scorer.policy, ranks.first, self.published)
            self.frozen_sha256 = weights.digest_tensors(self.base) if ranks.first else ""

    def learn(
        self,
        groups: Sequence[ReadyGroup],
        version: int,
        should_stop: Callable[[], bool],
        imitated: Sequence[ReadyGroup] = (),
        pretraining: bool = False,
    ) -> StepResult:
        """Make one step on all ranks' samples: ``epochs`` passes of at most ``minibatches`` updates.

        ``imitated`` groups add a term to the first update's loss. A critic learns from the step too, and alone with
        ``pretraining``. Raises :class:`step.Stopped` if ``should_stop`` before the first update, with unchanged
        weights; a later stop completes the step.
        """
        started = time.perf_counter()
        samples = [item for group in groups for item in group.samples]
        own_tokens = sum(len(item.answer) for item in samples)
        own_total = own_tokens if self.settings.aggregate == "tokens" else sum(bool(item.answer) for item in samples)
        tokens, sequences, total = self.ranks.total([own_tokens, len(samples), own_total])
        if not tokens:
            return StepResult(False, {}, 0, 0, 0.0)
        term = ImitationTerm.of(imitated, self.settings.imitate.weight, self.settings, self.collator, self.ranks)
        top = TopTokens()
        before = self._computed()
        try:
            parts = self._minibatches(groups, version, int(sequences))
            plan, assessed = self._plan(parts, groups, total, should_stop)
            if pretraining and assessed is not None:
                metrics = self._pretrain(assessed, tokens) | self._pass_cost(before, groups)
                return StepResult(True, metrics, int(tokens), int(sequences), since_ms(started))
            updates = self._updates(plan, version, should_stop, top, term)
        except step.Stopped:
            self.optimizer.zero_grad(set_to_none=True)
            raise
        finite = [update for update in updates if math.isfinite(update.grad_norm)]
        measured, lost = finite or updates, len(updates) - len(finite)
        own = functools.reduce(step.Sums.plus, (update.sums for update in measured))
        *sums, first_loss, gradient = self.ranks.total([*own, updates[0].sums.loss, top.gradient])
        noted = top_tokens.merge_parts(self.ranks.gathered(top.kept, TokenPart), gradient)
        metrics = step.mean_metrics(step.Sums(*sums), len(measured))
        if self.rules.terms is None:
            del metrics["loss_terms"]
        if len(updates) > 1:
            metrics["first_loss"] = first_loss
        metrics |= self._pass_cost(before, [*groups, *imitated])
        metrics["grad_norm"] = sum(update.grad_norm for update in measured) / len(measured)
        if lost:
            log.error("gradient not finite: update skipped", updates=lost, of=len(updates), loss=metrics["loss"])
        if term is not None and finite:
            metrics |= term.metrics(tokens)
        if self.critic is not None and assessed is not None and finite:
            metrics |= self.critic.fit(assessed)
        took_ms = since_ms(started)
        return StepResult(bool(finite), metrics, int(tokens), int(sequences), took_ms, len(finite), lost, noted)

    def imitate(self, groups: Sequence[ReadyGroup]) -> SftUpdate | None:
        """Make one update on the negative log-likelihood of groups; None without trainable tokens."""
        term = ImitationTerm.of(groups, 1.0, self.settings, self.collator, self.ranks)
        if term is None:
            return None
        term.accumulate(self.scorer, never_stop)
        norm = step.apply(self.scorer, self.optimizer, self.settings.grad_clip)
        if not math.isfinite(norm):
            log.error("gradient not finite: update skipped", updates=1, of=1, loss=term.nll)
        return SftUpdate(self.ranks.total([term.nll])[0], term.tokens, norm)

    def mean_entropy(self, groups: Sequence[ReadyGroup]) -> float:
        """Return the policy's mean entropy (nats) over the answer tokens of groups; NaN without any. Collective."""
        packed = self.collator.pieces(groups, self.settings.micro_batch, self.settings.micro_batch_tokens)
        batches = self.collator.batches(groups, packed, int(self.ranks.largest(len(packed))))
        own = [0.0, 0.0]
        with torch.no_grad():
            for batch in step.unless_stopped(batches, self.ranks, never_stop):
                own[0] += masked_sum(self.scorer(batch)[1], batch.mask_BA).item()
                own[1] += batch.mask_BA.sum().item()
        entropy, tokens = self.ranks.total(own)
        return entropy / tokens if tokens else math.nan

    def _minibatches(self, groups: Sequence[ReadyGroup], version: int, sequences: int) -> list[MicroBatches]:
        """Return this rank's micro-batches of each minibatch, equally many on every rank."""
        wanted, parts = self.settings.minibatches, [list(groups)]
        if wanted > 1:
            keys = self.ranks.gathered(minibatches.shuffle_keys(groups, version), int)
            parts = minibatches.split(groups, keys, wanted, version)
        if len(parts) < wanted and self.ranks.first:
            log.warning(
                "fewer updates than trainer.minibatches",
                reason="the step has too few sequences",
                minibatches=wanted,
                sequences=sequences,
                updates=len(parts) * self.settings.epochs,
            )
        minibatch_list: list[MicroBatches] = []
        for part in parts:
            packed = self.collator.pieces(part, self.settings.micro_batch, self.settings.micro_batch_tokens)
            count = int(self.ranks.largest(len(packed)))
            minibatch_list.append([*packed, *[()] * (count - len(packed))])
        return minibatch_list

    def _plan(
        self, parts: Sequence[MicroBatches], groups: Sequence[ReadyGroup], total: float, should_stop: Callable[[], bool]
    ) -> tuple[Sequence[PlannedUpdate], Assessment | None]:
        """Return the updates of a step, and what a critic says of its tokens."""
        packed = list(itertools.chain.from_iterable(parts))
        batches = self.collator.batches(groups, packed, len(packed))
        if len(parts) * self.settings.epochs == 1 and self.critic is None:
            return [PlannedUpdate(batches, None, total)], None
        collated, assessed = list(batches), None
        going = step.unless_stopped(collated, self.ranks, should_stop)
        if self.critic is None:
            with torch.no_grad():
                old_BA = [self.scorer(batch)[0] for batch in going]
        else:
            scored = [critic.score(self.scorer, batch) for batch in going]
            old_BA, assessed = [part.logp_BA for part in scored], self.critic.assess(collated, scored)
            collated = assessed.batches
        cuts = [0, *itertools.accumulate(map(len, parts))]
        pieces = [slice(start, end) for start, end in itertools.pairwise(cuts)]
        counts = [float(count(batch.mask_BA, self.settings.aggregate or "tokens")) for batch in collated]
        own = [sum(counts[piece]) for piece in pieces]
        shares = zip(pieces, self.ranks.total(own), strict=True)
        plan = [PlannedUpdate(collated[piece], old_BA[piece], max(share, 1.0)) for piece, share in shares]
        return plan * self.settings.epochs, assessed

    def _pretrain(self, assessed: Assessment, tokens: float) -> dict[str, float]:
        """Train the critic alone; return the metrics of the step."""
        entropy = self.ranks.total([assessed.entropy])[0] / tokens
        return {"entropy": entropy, **(self.critic.fit(assessed) if self.critic else {})}

    def _updates(
        self,
        plan: Sequence[PlannedUpdate],
        version: int,
        should_stop: Callable[[], bool],
        top: TopTokens,
        term: ImitationTerm | None = None,
    ) -> list[Update]:
        updates: list[Update] = []
        for part, old, share in plan:
            may_stop = never_stop if updates else should_stop
            sums = step.accumulate(
                self.scorer,
                part,
                old,
                self.settings,
                version,
                share,
                self.ranks,
                may_stop,
                self.reference,
                top,
                self.rules,
            )
            if term is not None and not updates:
                term.accumulate(self.scorer, may_stop)
            updates.append(Update(sums, step.apply(self.scorer, self.optimizer, self.settings.grad_clip)))
        return updates

    def _computed(self) -> PassCost:
        """Return the sums over all passes; a frozen vision tower computes only images that are not kept."""
        kept = self.scorer.features
        return self.collator.cost._replace(images=kept.encoded) if kept else self.collator.cost

    def _pass_cost(self, before: PassCost, groups: Sequence[ReadyGroup]) -> dict[str, float]:
        """Return what a pass over ``groups`` has computed since ``before``, over all ranks. Collective."""
        images = {ref.sha256 for group in groups for item in group.samples for ref in item.images}
        own = [float(now - then) for now, then in zip(self._computed(), before, strict=True)]
        own += [sum(group.distinct_tokens for group in groups), len(images)]
        rows, tokens, encoded, distinct, shown = self.ranks.total(own)
        return {
            "rows": rows,
            "tokens_computed": tokens,
            "images_encoded": encoded,
            "tokens_distinct": distinct,
            "images_distinct": shown,
        }

    def weights(self) -> Mapping[str, Tensor]:
        """Return the whole state on rank 0 with adapters merged; empty on other ranks."""
        adapted = lora.has_adapters(self.scorer.policy)
        with model.as_published(self.scorer, self.published) if adapted else contextlib.nullcontext():
            return model.gather_state(self.scorer.policy, self.ranks.first)

    def snapshot(self) -> WeightSnapshot:
        """Return the weights as published, with their probe."""
        with model.as_published(self.scorer, self.published):
            tensors = model.gather_state(self.scorer.policy, self.ranks.first, self.published)
            measured = model.probe_of(self.scorer, self.collator.renderer, self.settings.dtype)
        return WeightSnapshot(tensors, measured, self._adapter())

    def fault_of(self, snapshot: WeightSnapshot) -> str:
        """Return the first non-finite value in a snapshot or in the training state; empty if all are finite."""
        fault = self._fault_in_snapshot(snapshot) if self.ranks.first else ""
        faults = self.ranks.gathered([fault or finite.find_nonfinite(self._own_tensors())], str)
        return next(filter(None, faults), "")

    def _fault_in_snapshot(self, snapshot: WeightSnapshot) -> str:
        adapter = snapshot.adapter.tensors if snapshot.adapter else {}
        if fault := finite.find_nonfinite(itertools.chain(snapshot.tensors.items(), adapter.items())):
            return fault
        odd = [value for value in snapshot.probe.logprobs if not math.isfinite(value)]
        if not odd:
            return ""
        return (
            f"a log-probability of the probe is {odd[0]}; the largest weight is "
            f"{finite.largest_value(snapshot.tensors.items())}"
        )

    def _own_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield this rank's shards of trained parameters and their optimizer state."""
        model.reshard(self.scorer)  # Gathered parameters are not the optimizer's.
        for name, parameter in self.scorer.named_parameters():
            if parameter.requires_grad:
                own = name.removeprefix("policy.")
                yield own, lora.local_shard(parameter)
                for part, value in self.optimizer.state.get(parameter, {}).items():
                    yield f"{part} of {own}", optimizers.plain_part(value)
        if self.critic is not None:
            yield from ((f"critic.{name}", value) for name, value in self.critic.layer.named_parameters())

    def _adapter(self) -> Adapter | None:
        settings = self.settings.lora
        if not settings.rank:
            return None
        tensors = lora.tensors_of(self.scorer.policy, self.ranks.first)
        config = lora.peft_config(self.scorer.policy, settings, str(self.folder))
        return Adapter(tensors, settings.alpha / settings.rank, config, self.base)
