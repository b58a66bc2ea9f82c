"""The model, its optimizer and the step that a batch of groups makes: what every rank runs."""

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
from torch.distributed.device_mesh import init_device_mesh

from dart_streams.clock import since_ms
from dart_streams.config import Trainer
from dart_streams.policy import finite, weights
from dart_streams.policy.adapters import Adapter
from dart_streams.policy.probe import Probe
from dart_streams.policy.rendering import Renderer
from topics.trained import TrainedToken
from trainer.data.collate import Collator, MicroBatch
from trainer.data.samples import ReadyGroup, TrainingSample
from trainer.learning import lora, minibatches, model, step, top_tokens
from trainer.learning.imitation_term import ImitationTerm, SftUpdate
from trainer.learning.top_tokens import TopTokens
from trainer.objective import count
from trainer.ranks import Ranks

log = structlog.get_logger()


MicroBatches = Sequence[Sequence[TrainingSample]]
"""The samples of each micro-batch; an empty one keeps a rank in step with the others."""


class WeightSnapshot(NamedTuple):
    """What a version of the weights consists of: all ``tensors``, and the ``adapter`` if they are made of one.

    Tensors are on rank 0 only.
    """

    tensors: Mapping[str, Tensor]
    probe: Probe
    adapter: Adapter | None = None


class StepResult(NamedTuple):
    """What a step gave. ``updated`` is false if there was nothing to learn from, or no gradient was finite.

    ``top_tokens`` stand out by their part in the gradient or by their importance ratio.
    ``updates`` were made, ``lost`` were not, because their gradient was not finite: nothing is measured of those.
    """

    updated: bool
    metrics: dict[str, float]
    tokens: int
    sequences: int
    train_ms: float
    updates: int = 0
    lost: int = 0
    top_tokens: Sequence[TrainedToken] = ()


class Update(NamedTuple):
    """An update's sums on this rank, and the norm of its gradient over all ranks, before it was clipped."""

    sums: step.Sums
    grad_norm: float


def never_stop() -> bool:
    """Do not stop."""
    return False


class Learner:
    """Learns from batches of groups. All methods are collective.

    It starts from the model in ``folder``, or from a ``version`` of its weights. With ``kl_beta`` it also holds the
    model of ``folder``, frozen, to stay near it.
    """

    def __init__(
        self, folder: Path, renderer: Renderer, settings: Trainer, ranks: Ranks, version: Path | None = None
    ) -> None:
        self.folder = folder
        self.settings = settings
        self.ranks = ranks
        self.published: torch.dtype = getattr(torch, settings.publish.dtype)
        mesh = init_device_mesh(ranks.device.type, (ranks.count,))
        scorer = model.load(folder, renderer, ranks.device, settings.recompute, version, settings)
        self.collator = Collator(renderer, share_prompts=model.can_share_prompts(scorer, renderer))
        self.scorer = model.shard(scorer, mesh, settings.dtype)
        self.reference: model.Scorer | None = None
        self.frozen_sha256 = ""
        """The digest of the weights that are used beside those that are trained, on rank 0; empty if there are none."""
        if settings.kl_beta:
            frozen = model.load(folder, renderer, ranks.device).requires_grad_(False)
            self.frozen_sha256 = weights.digest_tensors(weights.own_state(frozen.policy)) if ranks.first else ""
            self.reference = model.shard(frozen, mesh, settings.dtype)
        # No weight decay: a run is too short for it to matter, and it would pull a pretrained model from its weights.
        self.optimizer = torch.optim.AdamW(
            [value for value in self.scorer.parameters() if value.requires_grad],
            lr=settings.learning_rate,
            weight_decay=0.0,
            fused=True,
        )
        self.base: Mapping[str, Tensor] = {}
        """Under adapters, the frozen weights as they are published, on rank 0."""
        if settings.lora.rank:
            self.base = model.gather_state(self.scorer.policy, ranks.first, self.published)
            self.frozen_sha256 = weights.digest_tensors(self.base) if ranks.first else ""

    def learn(
        self,
        groups: Sequence[ReadyGroup],
        version: int,
        should_stop: Callable[[], bool],
        imitated: Sequence[ReadyGroup] = (),
    ) -> StepResult:
        """Make one step of all ranks' samples: ``epochs`` passes of ``minibatches`` updates each.

        A step of fewer sequences than ``minibatches`` has an update for each of them.
        What is ``imitated`` beside them is a term of the first update's loss, before anything has moved the weights.

        Raises :class:`step.Stopped` if ``should_stop`` before the first update; the weights are unchanged. After it the
        step is completed.
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
        try:
            parts = self._minibatches(groups, version, int(sequences))
            updates = self._updates(parts, groups, total, version, should_stop, top, term)
        except step.Stopped:
            self.optimizer.zero_grad(set_to_none=True)
            raise
        made = [update for update in updates if math.isfinite(update.grad_norm)]
        measured, lost = made or updates, len(updates) - len(made)
        own = functools.reduce(step.Sums.plus, (update.sums for update in measured))
        *sums, first_loss, gradient = self.ranks.total([*own, updates[0].sums.loss, top.gradient])
        noted = top_tokens.merge_parts(self.ranks.gathered(top.kept), gradient)
        metrics = step.mean_metrics(step.Sums(*sums), len(measured))
        if len(updates) > 1:
            metrics["first_loss"] = first_loss
        metrics["grad_norm"] = sum(update.grad_norm for update in measured) / len(measured)
        if lost:
            log.error("gradient not finite: update skipped", updates=lost, of=len(updates), loss=metrics["loss"])
        if term is not None and made:
            metrics |= term.metrics(tokens)
        took_ms = since_ms(started)
        return StepResult(bool(made), metrics, int(tokens), int(sequences), took_ms, len(made), lost, noted)

    def imitate(self, groups: Sequence[ReadyGroup]) -> SftUpdate | None:
        """Make one update on the mean negative log-likelihood of groups; None if there is nothing to train on."""
        term = ImitationTerm.of(groups, 1.0, self.settings, self.collator, self.ranks)
        if term is None:
            return None
        term.accumulate(self.scorer, never_stop)
        norm = step.apply(self.scorer, self.optimizer, self.settings.grad_clip)
        if not math.isfinite(norm):
            log.error("gradient not finite: update skipped", updates=1, of=1, loss=term.nll)
        return SftUpdate(self.ranks.total([term.nll])[0], term.tokens, norm)

    def _minibatches(self, groups: Sequence[ReadyGroup], version: int, sequences: int) -> list[MicroBatches]:
        """Return this rank's samples as the micro-batches of each minibatch, as many of them on every rank."""
        wanted, parts = self.settings.minibatches, [list(groups)]
        if wanted > 1:
            keys = self.ranks.gathered(minibatches.shuffle_keys(groups, version))
            parts = minibatches.split(groups, keys, wanted, version)
        if len(parts) < wanted and self.ranks.first:
            log.warning(
                "fewer updates than trainer.minibatches",
                reason="the step has fewer sequences",
                minibatches=wanted,
                sequences=sequences,
                updates=len(parts) * self.settings.epochs,
            )
        found: list[MicroBatches] = []
        for part in parts:
            packed = self.collator.pieces(part, self.settings.micro_batch, self.settings.micro_batch_tokens)
            count = int(self.ranks.largest(len(packed)))
            found.append([*packed, *[()] * (count - len(packed))])
        return found

    def _updates(
        self,
        parts: Sequence[MicroBatches],
        groups: Sequence[ReadyGroup],
        total: float,
        version: int,
        should_stop: Callable[[], bool],
        top: TopTokens,
        term: ImitationTerm | None = None,
    ) -> list[Update]:
        packed = list(itertools.chain.from_iterable(parts))
        batches = self.collator.batches(groups, packed, len(packed))
        plan: Sequence[tuple[Iterable[MicroBatch], Iterable[Tensor] | None, float]] = [(batches, None, total)]
        if len(parts) * self.settings.epochs > 1:
            kept = list(batches)
            old_BA = step.score_batches(self.scorer, kept, self.ranks, should_stop)
            cuts = [0, *itertools.accumulate(map(len, parts))]
            pieces = [slice(start, end) for start, end in itertools.pairwise(cuts)]
            counted = [float(count(batch.mask_BA, self.settings.aggregate or "tokens")) for batch in kept]
            own = [sum(counted[piece]) for piece in pieces]
            shares = zip(pieces, self.ranks.total(own), strict=True)
            plan = [(kept[piece], old_BA[piece], max(share, 1.0)) for piece, share in shares] * self.settings.epochs
        updates: list[Update] = []
        for part, old, share in plan:
            may_stop = never_stop if updates else should_stop
            sums = step.accumulate(
                self.scorer, part, old, self.settings, version, share, self.ranks, may_stop, self.reference, top
            )
            if term is not None and not updates:
                term.accumulate(self.scorer, may_stop)
            updates.append(Update(sums, step.apply(self.scorer, self.optimizer, self.settings.grad_clip)))
        return updates

    def weights(self) -> Mapping[str, Tensor]:
        """Return the whole state on rank 0, under the model's own names and with adapters merged; nothing elsewhere."""
        adapted = lora.has_adapters(self.scorer.policy)
        with model.as_published(self.scorer, self.published) if adapted else contextlib.nullcontext():
            return model.gather_state(self.scorer.policy, self.ranks.first)

    def snapshot(self) -> WeightSnapshot:
        """Return the present weights as they are published, and what they make of the probe."""
        with model.as_published(self.scorer, self.published):
            tensors = model.gather_state(self.scorer.policy, self.ranks.first, self.published)
            found = model.probe_of(self.scorer, self.collator.renderer, self.settings.dtype)
        return WeightSnapshot(tensors, found, self._adapter())

    def fault_of(self, snapshot: WeightSnapshot) -> str:
        """Return what is not finite of a snapshot, or of what the next step starts from; empty if all is. Collective.

        Weights that make no finite log-probabilities of the probe are none to sample from, whatever their values.
        """
        found = self._fault_in_snapshot(snapshot) if self.ranks.first else ""
        faults = self.ranks.gathered([found or finite.find_nonfinite(self._own_tensors())])
        return next(filter(None, faults), "")

    def _fault_in_snapshot(self, snapshot: WeightSnapshot) -> str:
        adapter = snapshot.adapter.tensors if snapshot.adapter else {}
        if fault := finite.find_nonfinite(itertools.chain(snapshot.tensors.items(), adapter.items())):
            return fault
        odd = [value for value in snapshot.probe.logprobs if not math.isfinite(value)]
        if not odd:
            return ""
        return (
            f"a log-probability of the fixed probe is {odd[0]}; of all weights the largest value is "
            f"{finite.largest_value(snapshot.tensors.items())}"
        )

    def _own_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Return this rank's shards of what is trained, and of the optimizer's state of it."""
        model.reshard(self.scorer)  # parameters that a pass has gathered are others than the optimizer's
        for name, parameter in self.scorer.named_parameters():
            if parameter.requires_grad:
                own = name.removeprefix("policy.")
                yield own, lora.local_shard(parameter)
                for part, value in self.optimizer.state.get(parameter, {}).items():
                    yield f"{part} of {own}", lora.local_shard(value)

    def _adapter(self) -> Adapter | None:
        settings = self.settings.lora
        if not settings.rank:
            return None
        tensors = lora.tensors_of(self.scorer.policy, self.ranks.first)
        config = lora.peft_config(self.scorer.policy, settings, str(self.folder))
        return Adapter(tensors, lora.scaling_of(settings), config, self.base)
