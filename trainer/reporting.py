"""Metrics of an optimizer step for store, log and telemetry, and the mismatch alarm."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import psutil
import structlog
from opentelemetry import metrics

from dart_streams.curation.staleness import group_staleness
from dart_streams.telemetry import names
from dart_streams.telemetry.instruments import create_counter, create_gauge, create_histogram
from topics.curated import CuratedGroup
from topics.trained import MISMATCH_ALARM_NATS
from trainer.data.batch_builder import Batch
from trainer.data.samples import ReadyGroup
from trainer.learning.learner import StepResult

SHOWN = (
    *("loss", "reward", "grad_norm", "entropy", "mismatch", "staleness_max", "sequences", "data_wait_ms", "train_ms"),
    *("imitation_nll", "imitation_share", "sft_updates", "sft_entropy_before", "sft_entropy_after"),
    *("updates_not_finite", "not_finite_groups"),
)

log = structlog.get_logger()


def step_metrics(
    batch: Batch, result: StepResult, version: int, refused: Mapping[str, float], not_finite: int = 0
) -> dict[str, float]:
    """Return all finite metrics of a step; ``refused`` counts steps over all ranks.

    ``not_finite`` counts groups left out since the previous step because gradient or weights were not finite.
    ``staleness/N`` counts groups N versions old, ``reward/PAGE`` is a page's mean online reward, ``rss_mb`` is of rank
    0.
    """
    groups = [ready.group for ready in batch.groups]
    ages = [group_staleness(group, version) for group in groups]
    rewards = [member.reward for group in groups for member in group.members if member.source == "online"]
    busy_ms = batch.waited_ms + result.train_ms
    values = result.metrics | {
        "tokens": result.tokens,
        "sequences": result.sequences,
        "updates": result.updates,
        "updates_not_finite": result.lost,
        "groups": len(groups),
        "reward": sum(rewards) / len(rewards) if rewards else math.nan,
        "staleness_mean": sum(ages) / max(len(ages), 1),
        "staleness_max": max(ages, default=0),
        "data_wait_ms": batch.waited_ms,
        "train_ms": result.train_ms,
        "idle_share": batch.waited_ms / busy_ms if busy_ms else 0.0,
        "stale_groups": batch.stale,
        "not_finite_groups": not_finite,
        "tokens_left_out": batch.tokens_left_out,
        "tokens_per_s": result.tokens * 1000 / result.train_ms if result.train_ms else 0.0,
        "rss_mb": psutil.Process().memory_info().rss / 2**20,
        **{f"staleness/{age}": count for age, count in Counter(ages).items()},
        **{f"reward/{page}": reward for page, reward in page_rewards(groups).items()},
        **refused,
    }
    return {name: float(value) for name, value in values.items() if math.isfinite(value)}


def page_rewards(groups: Sequence[CuratedGroup]) -> dict[str, float]:
    """Return the mean online reward by page, the task id up to its seed."""
    rewards: defaultdict[str, list[float]] = defaultdict(list)
    for group in groups:
        page = group.task_id.partition("#")[0]
        rewards[page] += [member.reward for member in group.members if member.source == "online"]
    return {page: sum(own) / len(own) for page, own in rewards.items() if own}


def refused_counts(groups: list[ReadyGroup]) -> Counter[str]:
    """Return the number of refused steps by reason."""
    return sum((ready.refused for ready in groups), Counter())


class StepReporter:
    """Reports steps to telemetry and the log."""

    def __init__(self) -> None:
        meter = metrics.get_meter(names.METER)
        self._step = create_gauge(meter, names.TRAINER_STEP)
        self._metric = create_gauge(meter, names.TRAINER_FIGURE)
        self._histograms = {
            "train_ms": create_histogram(meter, names.TRAINER_STEP_MS),
            "data_wait_ms": create_histogram(meter, names.TRAINER_WAIT_MS),
            "publish_ms": create_histogram(meter, names.TRAINER_PUBLISH_MS),
            "checkpoint_ms": create_histogram(meter, names.TRAINER_CHECKPOINT_MS),
            "mismatch": create_histogram(meter, names.TRAINER_MISMATCH),
        }
        self._read_ms = create_histogram(meter, names.TRAINER_READ_MS)
        self._groups = create_counter(meter, names.TRAINER_GROUPS)
        self._dropped = create_counter(meter, names.TRAINER_DROPPED)
        self._staleness = create_histogram(meter, names.TRAINER_STALENESS)

    def trained(self, train_step: int, version: int, batch: Batch, step: Mapping[str, float]) -> None:
        """Report the metrics of the ``step`` that made ``version``."""
        self._step.set(train_step)
        for name, value in step.items():
            self._metric.set(value, {"name": name})
        for name in self._histograms.keys() & step.keys():  # Unmeasured values are missing.
            self._histograms[name].record(step[name])
        self._groups.add(len(batch.groups))
        for ready in batch.groups:
            self._read_ms.record(ready.read_ms)
            for member in ready.group.members:
                if member.source == "online" and member.version_min is not None:
                    self._staleness.record(version - 1 - member.version_min)
        self.dropped(batch)
        log.info(
            "trained",
            train_step=train_step,
            version=version,
            **{name: round(step[name], 4) for name in SHOWN if name in step},
        )
        if step.get("same_version_mismatch", 0.0) > MISMATCH_ALARM_NATS:
            log.warning(
                "engine and trainer disagree on log-probabilities of the same weights",
                mismatch_nats=round(step["same_version_mismatch"], 4),
                alarm_nats=MISMATCH_ALARM_NATS,
                tokens=int(step.get("same_version_tokens", 0)),
                check="the rollout worker's model directory, dtype and prompt settings",
            )

    def dropped(self, batch: Batch, not_finite: int = 0) -> None:
        """Count untrained groups and steps of a batch, ``not_finite`` of its groups among them."""
        self._dropped.add(batch.stale, {"why": "stale"})
        if lost := batch.refused + not_finite:
            self._dropped.add(lost, {"why": "not_finite"})
        for reason, count in refused_counts(batch.groups).items():
            self._dropped.add(count, {"why": reason})
