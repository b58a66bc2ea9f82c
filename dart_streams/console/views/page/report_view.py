"""A run's report for the page: the figures of report.json, and the curves and sample episodes beside them. Pure."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec
import tomli_w

from dart_streams.console.runs.evaluation import EvaluationEpisode, EvaluationResult
from dart_streams.console.runs.run_folder import without_nulls
from dart_streams.console.runs.time_slices import SLICE_MS
from dart_streams.console.views import report_metrics
from dart_streams.console.views.report_metrics import ReportInputs, ages_of, mean
from dart_streams.telemetry import names
from topics.values import OutcomeKind

Values = list[float | None]

SMOOTHING = 6
"""Time slices that a smoothed point looks back over."""
BARS = 40
"""Bars of outcomes over time, at most."""
SAMPLES = 4
SLOT_STATES = ("step", "evaluate", "wait", "reset", "idle")
"""What a slot does, from the bottom of the plot to its top."""
OUTCOMES: tuple[OutcomeKind, ...] = (
    "success",
    "failure",
    "truncated",
    "invalid_action",
    "env_error",
    "policy_error",
    "lost",
    "cancelled",
)
LEARNING = (
    "reward",
    "entropy",
    "loss",
    "grad_norm",
    "clip_share",
    "kl_reference",
    "same_version_mismatch",
    "imitation_nll",
    "imitation_share",
)
"""Metrics of optimizer steps that the report plots."""


class Curves(msgspec.Struct, frozen=True):
    """Lines over minutes since training began, optimizer steps or weight versions; null where there is no value."""

    x: list[float]
    lines: dict[str, Values]


class SampleEpisode(msgspec.Struct, frozen=True):
    """One played episode, and the weight versions that played it."""

    trajectory_id: str
    outcome: str
    version_min: int | None
    version_max: int | None


class SamplePair(msgspec.Struct, frozen=True):
    """The same held-out task before and after training."""

    task_id: str
    before: SampleEpisode
    after: SampleEpisode


class PhaseSpan(msgspec.Struct, frozen=True):
    """A phase that has ended: when it began (minutes since the run did), and how long it took."""

    name: str
    begin_min: float
    seconds: float


class ReportView(msgspec.Struct, frozen=True, kw_only=True):
    """A report. ``report`` is what report.json has; curves are empty where there is no data for them.

    ``published_min`` are the times of the weight versions, ``bound`` is that of staleness, in versions.
    """

    run: str
    started_ms: int | None
    minutes: float
    backend: str
    slots: int
    temperature: float
    report: dict[str, Any]
    success: Curves
    published_min: list[float]
    slot_shares: Curves
    rate: Curves
    staleness: Curves
    bound: int
    pauses: Curves
    learning: Curves
    outcomes: Curves
    phases: list[PhaseSpan]
    samples: list[SamplePair]
    settings: str


def report_view(inputs: ReportInputs) -> ReportView:
    """Return the report of a run, or of as much of it as there is."""
    config, phases = inputs.config, inputs.journal.phases
    before, after = report_metrics.evaluations(inputs)
    last = minutes(inputs, inputs.circle.ended_ms or 0)
    published = [minutes(inputs, version.at_ms) for version in inputs.progress.versions.values()]
    return ReportView(
        run=config.bus.run.removeprefix("dart."),
        started_ms=phases[0].started_ms if phases else None,
        minutes=round(inputs.circle_s / 60, 2),
        backend=config.env.backend,
        slots=config.env.workers * config.env.slots,
        temperature=config.evaluation.temperatures[0],
        report=report_metrics.report(inputs),
        success=success(inputs),
        published_min=[round(at, 3) for at in sorted(published) if 0 <= at <= last],
        slot_shares=slot_shares(inputs),
        rate=rate(inputs),
        staleness=staleness(inputs),
        bound=config.curation.max_staleness,
        pauses=pauses(inputs),
        learning=learning(inputs),
        outcomes=outcomes(inputs),
        phases=spans(inputs),
        samples=samples(before, after),
        settings=tomli_w.dumps(without_nulls(msgspec.to_builtins(config))),
    )


def minutes(inputs: ReportInputs, at_ms: float) -> float:
    """Return a time as minutes since training began."""
    return (at_ms - inputs.circle.started_ms) / 60_000


def middles(inputs: ReportInputs) -> list[float]:
    """Return the middle of each time slice of training, in minutes."""
    return [round(minutes(inputs, (number + 0.5) * SLICE_MS), 3) for number in inputs.slices]


def rolling(values: Sequence[tuple[float, float]], width: int = SMOOTHING) -> Values:
    """Return the ratio of sums over the last ``width`` pairs (numerator, denominator), None where that is empty."""
    result: Values = []
    for index in range(len(values)):
        part = values[max(0, index + 1 - width) : index + 1]
        below = sum(denominator for _, denominator in part)
        result.append(sum(numerator for numerator, _ in part) / below if below else None)
    return result


def lines(**values: Sequence[float | None]) -> dict[str, Values]:
    """Return lines with four digits, which is all that a plot shows."""
    return {name: [None if v is None else float(f"{v:.4g}") for v in line] for name, line in values.items()}


def success(inputs: ReportInputs) -> Curves:
    """Return training success over time: of each slice, and smoothed."""
    parts = [inputs.progress.slices.get(number) for number in inputs.slices]
    pairs = [(part.reward, float(part.rewarded)) if part else (0.0, 0.0) for part in parts]
    if not any(count for _, count in pairs):
        return Curves([], {})
    each = [reward / count if count else None for reward, count in pairs]
    return Curves(middles(inputs), lines(slice=each, smoothed=rolling(pairs)))


def slot_shares(inputs: ReportInputs) -> Curves:
    """Return what the slots did over time, as shares of their time, by the env workers' metrics."""
    spent = inputs.readings.growth(names.ENV_SLOT_MS, "state", SLICE_MS)
    if not any(number in spent for number in inputs.slices):
        return Curves([], {})
    whole = {number: sum(states.values()) or 1.0 for number, states in spent.items()}
    shares = {
        state: [spent.get(n, {}).get(state, 0.0) / whole.get(n, 1.0) for n in inputs.slices] for state in SLOT_STATES
    }
    return Curves(middles(inputs), lines(**shares))


def rate(inputs: ReportInputs) -> Curves:
    """Return environment steps a second over time: of each slice, and smoothed."""
    parts = [inputs.progress.slices.get(number) for number in inputs.slices]
    rates = [(float(part.steps) if part else 0.0, SLICE_MS / 1000) for part in parts]
    each = [steps / seconds for steps, seconds in rates]
    return Curves(middles(inputs), lines(slice=each, smoothed=rolling(rates))) if rates else Curves([], {})


def staleness(inputs: ReportInputs) -> Curves:
    """Return how old trajectories were when trained on, in versions, by optimizer step."""
    rows = [(float(row["train_step"]), ages) for row in inputs.trained if (ages := ages_of(inputs, row))]
    means, oldest = [mean(ages) for _, ages in rows], [float(max(ages)) for _, ages in rows]
    return Curves([step for step, _ in rows], lines(mean=means, oldest=oldest) if rows else {})


def pauses(inputs: ReportInputs) -> Curves:
    """Return how long generation paused for each weight switch (milliseconds), by version."""
    switches = sorted(inputs.progress.switches, key=lambda switch: switch.version)
    return Curves([float(s.version) for s in switches], lines(pause=[s.pause_ms for s in switches]) if switches else {})


def learning(inputs: ReportInputs) -> Curves:
    """Return the optimizer's metrics of :data:`LEARNING`, those that there are, by step."""
    left_out = set() if inputs.config.trainer.kl_beta else {"kl_reference"}
    rows = [row["metrics"] for row in inputs.trained]
    known = [name for name in LEARNING if name not in left_out and any(name in row for row in rows)]
    values = {name: [row.get(name) for row in rows] for name in known}
    return Curves([float(row["train_step"]) for row in inputs.trained], lines(**values))


def outcomes(inputs: ReportInputs) -> Curves:
    """Return the shares of outcomes of training episodes over time, those that came up."""
    width = max(1, -(-len(inputs.slices) // BARS))
    counts: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for trajectory in inputs.progress.finished.values():
        if trajectory.purpose == "train":
            counts[trajectory.finished_ms // (SLICE_MS * width)][trajectory.outcome] += 1
    numbers = sorted(counts)
    shares = {kind: [counts[number][kind] / counts[number].total() for number in numbers] for kind in OUTCOMES}
    times = [round(minutes(inputs, (number + 0.5) * SLICE_MS * width), 3) for number in numbers]
    return Curves(times, lines(**{kind: line for kind, line in shares.items() if any(line)}))


def spans(inputs: ReportInputs) -> list[PhaseSpan]:
    """Return the phases that have ended, on the run's own time."""
    phases = inputs.journal.phases
    return [
        PhaseSpan(
            phase.name,
            round((phase.started_ms - phases[0].started_ms) / 60_000, 3),
            round((phase.ended_ms - phase.started_ms) / 1000, 1),
        )
        for phase in phases
        if phase.ended_ms is not None
    ]


def samples(before: EvaluationResult | None, after: EvaluationResult | None) -> list[SamplePair]:
    """Return the episodes to show: the same task before and after."""
    if before is None or after is None:
        return []
    return [
        SamplePair(second.task_id, sample(first), sample(second)) for first, second in choose(before, after, SAMPLES)
    ]


def sample(episode: EvaluationEpisode) -> SampleEpisode:
    """Return an evaluated episode briefly."""
    played = episode.trajectory
    return SampleEpisode(played.trajectory_id, played.outcome, played.version_min, played.version_max)


def choose(
    before: EvaluationResult, after: EvaluationResult, count: int
) -> list[tuple[EvaluationEpisode, EvaluationEpisode]]:
    """Choose pairs of the same task, a page each: those that were learnt first, then long ones."""
    earlier = {episode.index: episode for episode in before.episodes}
    pairs = [(earlier[e.index], e) for e in after.episodes if e.index in earlier]

    def rank(pair: tuple[EvaluationEpisode, EvaluationEpisode]) -> tuple[float, int, int]:
        first, second = pair[0].trajectory, pair[1].trajectory
        return (first.reward or 0.0) - (second.reward or 0.0), -second.steps, pair[0].index

    pairs.sort(key=rank)
    chosen: dict[str, tuple[EvaluationEpisode, EvaluationEpisode]] = {}
    for first, second in pairs:
        chosen.setdefault(first.page, (first, second))
    return list(itertools.islice(chosen.values(), count))
