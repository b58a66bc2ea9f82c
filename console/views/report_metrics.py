"""The figures of a report and their sources. Pure.

Other programs read the keys without a nested table; the rest is for the page.
"""

import functools
import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from console.runs import evaluation, open_orders
from console.runs.evaluation import EvaluationResult, Rate, rate_difference
from console.runs.metrics_reader import Distribution, MetricsReader
from console.runs.process_usage import ProcessUsage, cpu_seconds
from console.runs.run_folder import PhaseLog
from console.runs.run_state import RunState
from console.runs.time_slices import SLICE_MS
from console.runs.weight_versions import served_weights
from console.views.optional_numbers import mean_or_none, median_or_none, round_optional
from console.views.trainer_figures import trainer_fields
from dart_streams.bus.lag import Lag
from dart_streams.config import Config
from dart_streams.config.tasks import TaskSet
from dart_streams.telemetry import names
from topics.trained import TrainedStep
from topics.values import OutcomeKind

MAX_FAULTS = 20
"""Maximum number of places and kinds of faults in a report."""
MAX_REASON_CHARACTERS = 300


class ReportInputs(msgspec.Struct, frozen=True, dict=True):
    """The inputs of a report: a run's fold, journal, metrics, committed offsets and process costs."""

    config: Config
    tasks: TaskSet
    journal: PhaseLog
    progress: RunState
    readings: MetricsReader
    lags: list[Lag] | None
    usage: list[ProcessUsage]

    @property
    def trained(self) -> list[TrainedStep]:
        """The optimizer steps in order."""
        return [step for _, step in sorted(self.progress.trained.items())]

    @functools.cached_property
    def spans_ms(self) -> list[tuple[int, int]]:
        """The start and the end of each training phase (epoch ms); a resumed run has several.

        A phase without an end lasts until its last record, before the next phase.
        """
        spans, phases = [], self.journal.phases
        for number, phase in enumerate(phases):
            if phase.name == "circle":
                next_ms = phases[number + 1].started_ms if phases[number + 1 :] else math.inf
                spans.append((phase.started_ms, phase.ended_ms or max(phase.started_ms, self._last_record_ms(next_ms))))
        return spans

    def _last_record_ms(self, before_ms: float) -> int:
        newest_ms = max((activity.at_ms for activity in self.progress.activity.values()), default=0)
        if newest_ms < before_ms:
            return newest_ms
        return max(
            (at_ms for number in self.progress.slices if (at_ms := (number + 1) * SLICE_MS) <= before_ms), default=0
        )

    def trained_ms(self, until_ms: float = math.inf) -> float:
        """Return the milliseconds of the training phases before a time."""
        return sum(max(0, min(end_ms, until_ms) - start_ms) for start_ms, end_ms in self.spans_ms)

    @property
    def trained_metrics(self) -> list[dict[str, float]]:
        """The metrics of the optimizer steps within the training phases."""
        return [step.metrics for step in self.trained if self.is_training(step.at_ms)]

    def is_training(self, at_ms: float) -> bool:
        """Return whether a time is in a training phase."""
        return any(start_ms <= at_ms <= end_ms for start_ms, end_ms in self.spans_ms)

    @functools.cached_property
    def slices(self) -> list[int]:
        """The whole time slices of the training phases in which something happened, and those beside them."""
        return self.training_slices(number + beside for number in self.progress.slices for beside in (-1, 0, 1))

    def training_slices(self, numbers: Iterable[int]) -> list[int]:
        """Return those of some time slices that are whole within the training phases, in order."""
        phases = [range(start // SLICE_MS + 1, end // SLICE_MS) for start, end in self.spans_ms]
        return sorted({number for number in numbers if any(number in phase for phase in phases)})

    @property
    def slice_count(self) -> int:
        """The number of whole time slices of the training phases."""
        return sum(max(0, end // SLICE_MS - start // SLICE_MS - 1) for start, end in self.spans_ms)


def build_report(inputs: ReportInputs) -> dict[str, Any]:
    """Return all figures, ready for JSON. Unknown figures are None."""
    progress, lags = inputs.progress, inputs.lags
    lost, still_open = open_orders.lost_orders(progress, lags), open_orders.orders_under_way(progress, lags)
    before, after = read_evaluations(inputs)
    ages = [age for step in inputs.trained for age in ages_of(inputs, step)]
    pauses = [switch.pause_ms for switch in progress.switches]
    return {
        "recipe": list(inputs.config.recipe),
        **success_fields(before, after),
        "further_temperatures": further_temperatures(inputs),
        **count_volume(inputs),
        "env_utilisation": round_optional(slot_utilization(inputs)),
        "slot_time": slot_time(inputs),
        "staleness": {"mean": round_optional(mean_or_none(ages)), "max": max(ages, default=None)},
        "weight_switch_ms": {
            "p50": round_optional(median_or_none(pauses), 1),
            "max": round_optional(max(pauses, default=None), 1),
        },
        "versions_served": len({switch.version for switch in progress.switches}),
        "served_weights": msgspec.to_builtins(served_weights(progress)),
        "failed_loads": len(progress.failed_loads),
        "requests": count_requests(inputs),
        "prompts": count_prompts(inputs),
        "answers_wrong": answers_wrong(inputs),
        "overhead_ms": quantile_fields(inputs, names.ENV_OVERHEAD_MS),
        "step_ms": step_times(inputs),
        "lost": None if lost is None else len(lost),
        "open": None if still_open is None else len(still_open),
        "trajectories": count_trajectories(inputs),
        "env_faults": env_faults(inputs),
        "env_fault_kinds": progress.env_fault_kinds.most(MAX_FAULTS),
        "policy_fault_kinds": progress.policy_fault_kinds.most(MAX_FAULTS),
        "fault_totals": {"env": progress.env_fault_kinds.total, "policy": progress.policy_fault_kinds.total},
        "deaths": [msgspec.to_builtins(death) for death in inputs.journal.deaths],
        "groups": {"curated": len(progress.groups), "consumed": progress.groups_consumed},
        **proposal_fields(inputs.config, progress),
        "trainer": trainer_fields(inputs.config.trainer, inputs.trained_metrics, inputs.trained_ms() / 1000),
        "cpu_s": sum_tables(cpu_seconds(inputs.usage, *span) for span in inputs.spans_ms),
        "wall_s": phase_seconds(inputs),
        "outcome": inputs.journal.outcome,
        "starts": [msgspec.to_builtins(start) for start in inputs.journal.starts],
    }


def proposal_fields(config: Config, progress: RunState) -> dict[str, Any]:
    """Return the numbers of accepted, refused and waiting proposed tasks, if the run takes any."""
    if not config.tasks.proposals:
        return {}
    accepted = [verdict.accepted for verdict in progress.verdicts.values()]
    waiting = len(progress.proposed.keys() - progress.verdicts.keys())
    return {"proposals": {"accepted": sum(accepted), "refused": len(accepted) - sum(accepted), "waiting": waiting}}


def read_evaluations(
    inputs: ReportInputs, temperature: float | None = None
) -> tuple[EvaluationResult | None, EvaluationResult | None]:
    """Return the evaluations before and after training, from ``trajectories``; None where the run has none yet."""
    before, after = (
        None if version is None else evaluation.read(inputs.config, inputs.tasks, inputs.progress, version, temperature)
        for version in (inputs.journal.before_version, inputs.journal.after_version)
    )
    return before, after


def further_temperatures(inputs: ReportInputs) -> list[dict[str, Any]]:
    """Return held-out success at each further temperature, before and after training."""
    rows: list[dict[str, Any]] = []
    for temperature in inputs.config.evaluation.temperatures[1:]:
        before, after = (result.overall if result else None for result in read_evaluations(inputs, temperature))
        rows.append({"temperature": temperature, "before": rate_fields(before), "after": rate_fields(after)})
        if before and after:
            rows[-1]["change"] = change_fields(before, after)
    return rows


def change_fields(before: Rate, after: Rate) -> dict[str, float | None]:
    """Return a change with its 95 % interval as plain values."""
    return dict(zip(("mean", "low", "high"), map(round_optional, rate_difference(before, after)), strict=True))


def success_fields(before: EvaluationResult | None, after: EvaluationResult | None) -> dict[str, Any]:
    """Return held-out success in all and by page, with 95 % intervals."""
    results = {"before": before, "after": after}
    pages = sorted({page for result in results.values() if result for page in result.per_page})
    fields: dict[str, Any] = {
        "success_before": before and round_optional(before.overall.rate),
        "success_after": after and round_optional(after.overall.rate),
        "per_task": {
            page: {name: result and rate_fields(result.per_page.get(page)) for name, result in results.items()}
            for page in pages
        },
        "evaluation": {
            name: result and {**rate_fields(result.overall), "version": result.version, "faults": result.faults}
            for name, result in results.items()
        },
    }
    if before and after:
        fields["evaluation"]["change"] = change_fields(before.overall, after.overall)
    return fields


def rate_fields(rate: Rate | None) -> dict[str, Any]:
    """Return a rate as plain values."""
    if rate is None:
        return {}
    return {name: round_optional(getattr(rate, name)) for name in ("rate", "low", "high")} | {"episodes": rate.trials}


def count_volume(inputs: ReportInputs) -> dict[str, Any]:
    """Count optimizer steps from ``weights``, episodes from ``trajectories``, and steps from ``observations``."""
    progress, seconds = inputs.progress, inputs.slice_count * SLICE_MS / 1000
    steps = sum(progress.slices[number].steps for number in inputs.slices if number in progress.slices)
    finished = progress.finished.values()
    return {
        "train_steps": max((version.event.train_step for version in progress.versions.values()), default=0),
        "episodes": sum(trajectory.purpose == "train" for trajectory in finished),
        "env_steps": sum(trajectory.steps for trajectory in finished if trajectory.purpose == "train"),
        "env_steps_per_s": round_optional(steps / seconds, 2) if seconds else None,
        "all_purposes": {
            "episodes": dict(Counter(trajectory.purpose for trajectory in finished)),
            "env_steps": progress.steps,
        },
    }


def slot_time(inputs: ReportInputs) -> dict[str, float]:
    """Return the shares of slot time by state in the training phases, from the metrics of the env workers."""
    by_state = sum_tables(inputs.readings.by_attribute(names.ENV_SLOT_MS, "state", *span) for span in inputs.spans_ms)
    total = sum(by_state.values())
    return {state: round_optional(value / total) or 0.0 for state, value in by_state.items()} if total else {}


def slot_utilization(inputs: ReportInputs) -> float | None:
    """Return the share of slot time with an episode, from the metrics or else from ``trajectories``."""
    if shares := slot_time(inputs):
        return 1.0 - shares.get("idle", 0.0)
    slices, slot_ms = inputs.progress.slices, inputs.slice_count * SLICE_MS * inputs.config.env.workers
    busy_ms = sum(slices[number].busy_ms for number in inputs.slices if number in slices)
    return min(1.0, busy_ms / (slot_ms * inputs.config.env.slots)) if slot_ms else None


def ages_of(inputs: ReportInputs, step: TrainedStep) -> list[int]:
    """Return the age of each trajectory of an optimizer step: the trained version less the oldest that acted.

    A step trains the version before its own. Trajectories from the experience pool are old on purpose and do
    not count.
    """
    groups = [inputs.progress.groups[name][0] for name in step.group_ids if name in inputs.progress.groups]
    return [
        max(0, step.version - 1 - member.version_min)
        for group in groups
        for member in group.members
        if member.source == "online" and member.version_min is not None
    ]


def count_requests(inputs: ReportInputs) -> dict[str, int | None]:
    """Count the outcomes of action requests, from the env workers' counters; None without metrics."""
    counters = {
        "sent": names.ENV_REQUESTS_SENT,
        "answered": names.ENV_REQUESTS_ANSWERED,
        "timed_out": names.ENV_REQUESTS_TIMED_OUT,
    }
    if not inputs.readings.points:
        return dict.fromkeys(counters)
    return {key: int(inputs.readings.counter(name)) for key, name in counters.items()}


def count_prompts(inputs: ReportInputs) -> dict[str, Any]:
    """Count the tokens and screenshots that rollout computed, and answers with other tokens in history than generated.

    Figures of the whole run; None without metrics of an engine with a model.
    """
    readings = inputs.readings
    tokens = readings.by_attribute(names.ROLLOUT_PROMPT_TOKENS, "source")
    answers = readings.by_attribute(names.ROLLOUT_RECALLED, "tokens")
    total = sum(tokens.values())
    screenshots, encodings = (readings.counter(name) for name in (names.ROLLOUT_SCREENSHOTS, names.ROLLOUT_ENCODINGS))
    return {
        "tokens": int(total) or None,
        "computed_tokens": int(tokens["computed"]) if total else None,
        "cached_share": round_optional(tokens["cached"] / total) if total else None,
        "screenshots": int(screenshots) or None,
        "encodings": int(encodings) or None,
        "answers_retokenized": int(answers.get("other", 0)) if answers else None,
        "retokenized_share": round_optional(answers.get("other", 0) / sum(answers.values())) if answers else None,
    }


def answers_wrong(inputs: ReportInputs) -> dict[str, dict[str, int]] | None:
    """Count the faults of answers by kind, in executed and in refused answers; None without metrics."""
    if not inputs.readings.points:
        return None
    result = {}
    for treated in ("executed", "refused"):
        counts = inputs.readings.by_attribute(names.ENV_ANSWERS_WRONG, "kind", treated=treated)
        result[treated] = {kind: int(count) for kind, count in counts.items() if count}
    return result


def quantile_fields(inputs: ReportInputs, name: str) -> dict[str, Any]:
    """Return median, 99th percentile and mean of a histogram over the training phases."""
    parts = [part for span in inputs.spans_ms if (part := inputs.readings.distribution(name, *span))]
    if not parts:
        return {"p50": None, "p99": None, "mean": None}
    values = functools.reduce(Distribution.add, parts)
    figures = {"p50": values.quantile(0.5), "p99": values.quantile(0.99), "mean": values.mean}
    return {key: round_optional(value, 1) for key, value in figures.items()}


def step_times(inputs: ReportInputs) -> dict[str, Any]:
    """Return the parts of an environment step's time, from the metrics of env and rollout workers."""
    parts = {
        "queue": names.ROLLOUT_QUEUE_MS,
        "generate": names.ROLLOUT_GENERATE_MS,
        "overhead": names.ENV_OVERHEAD_MS,
        "execute": names.ENV_EXECUTE_MS,
        "reset": names.ENV_RESET_MS,
        "evaluate": names.ENV_EVALUATE_MS,
        "request": names.ENV_REQUEST_MS,
    }
    return {part: quantile_fields(inputs, name) for part, name in parts.items()}


def count_trajectories(inputs: ReportInputs) -> dict[str, Any]:
    """Count the outcomes of training trajectories, from ``trajectories`` and ``trained``."""
    train = {t.trajectory_id: t for t in inputs.progress.finished.values() if t.purpose == "train"}
    used = {identity for step in inputs.trained for identity in step.trajectory_ids}
    outcomes: Counter[OutcomeKind] = Counter(t.outcome for t in train.values())
    return {
        "finished": len(train),
        "trained": len(used & train.keys()),
        "dropped": len(train.keys() - used),
        "by_outcome": dict(outcomes.most_common()),
        "from_pool": len(used - train.keys()),
        "untrainable": sum(bool(t.untrainable) for t in train.values()),
    }


def env_faults(inputs: ReportInputs) -> list[dict[str, Any]]:
    """Return the tasks and hosts with most environment faults and the newest reason, from ``observations``."""
    places = sorted(inputs.progress.env_faults.items(), key=lambda item: (-item[1].episodes, item[0]))
    return [
        {"task": task, "host": host, "episodes": known.episodes, "reason": known.reason[:MAX_REASON_CHARACTERS]}
        for (task, host), known in places[:MAX_FAULTS]
    ]


def sum_tables(tables: Iterable[dict[str, float]]) -> dict[str, float]:
    """Return the sums of tables by key."""
    total: dict[str, float] = {}
    for table in tables:
        for key, value in table.items():
            total[key] = round(total.get(key, 0.0) + value, 6)
    return total


def phase_seconds(inputs: ReportInputs) -> dict[str, float]:
    """Return the duration of each phase in seconds, from the journal; phases of a resumed run add up."""
    seconds: dict[str, float] = {}
    for phase in inputs.journal.phases:
        if phase.ended_ms is not None:
            seconds[phase.name] = round(seconds.get(phase.name, 0.0) + (phase.ended_ms - phase.started_ms) / 1000, 2)
    return seconds
