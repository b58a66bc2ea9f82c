"""The report of a run for the page: the figures of report.json with curves and sample episodes. Pure."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, get_args

import msgspec

from console.runs.evaluation import EvaluationEpisode, EvaluationResult
from console.runs.run_folder import RunPhase, format_toml
from console.runs.time_slices import SLICE_MS
from console.views import report_metrics
from console.views.optional_numbers import mean_or_none, round_digits
from console.views.page.episodes import EpisodePair, pair_episodes
from console.views.report_metrics import ReportInputs, ages_of
from dart_streams.telemetry import names
from topics.values import OutcomeKind

Values = list[float | None]

SMOOTHING = 6
"""Time slices of a smoothed point."""
MAX_BARS = 40
"""Maximum number of bars of outcomes over time."""
SAMPLES = 4
SLOT_STATES = ("step", "evaluate", "wait", "reset", "idle")
"""States of a slot, from the bottom of the plot to its top."""
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
    """Lines over minutes of training, optimizer steps or weight versions; null where there is no value."""

    x: list[float] = []
    lines: dict[str, Values] = {}


class ReportView(msgspec.Struct, frozen=True, kw_only=True):
    """A report. ``report`` is the content of report.json; curves without data are empty.

    ``published_min`` are the times of the weight versions in minutes of training; ``bound`` is the maximum staleness
    in versions. Samples are held-out tasks before and after training.
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
    phases: tuple[RunPhase, ...]
    samples: list[EpisodePair]
    settings: str


def report_view(inputs: ReportInputs) -> ReportView:
    """Return the report of a run, or of its part so far."""
    config, phases = inputs.config, inputs.journal.phases
    before, after = report_metrics.read_evaluations(inputs)
    published = [at_ms for version in inputs.progress.versions.values() if inputs.is_training(at_ms := version.at_ms)]
    return ReportView(
        run=config.bus.run.removeprefix("dart."),
        started_ms=phases[0].started_ms if phases else None,
        minutes=round(inputs.trained_ms() / 60_000, 2),
        backend=config.env.backend,
        slots=config.env.workers * config.env.slots,
        temperature=config.evaluation.temperatures[0],
        report=report_metrics.build_report(inputs),
        success=success_curves(inputs),
        published_min=[round(minutes_at(inputs, at_ms), 3) for at_ms in sorted(published)],
        slot_shares=slot_shares(inputs),
        rate=rate_curves(inputs),
        staleness=staleness_curves(inputs),
        bound=config.curation.max_staleness,
        pauses=pause_curve(inputs),
        learning=learning_curves(inputs),
        outcomes=outcome_shares(inputs),
        phases=tuple(phase for phase in phases if phase.ended_ms is not None),
        samples=choose_samples(before, after, SAMPLES) if before and after else [],
        settings=format_toml(config),
    )


def minutes_at(inputs: ReportInputs, at_ms: float) -> float:
    """Return a time as minutes of training, without the time between a run and its resumption."""
    return inputs.trained_ms(at_ms) / 60_000


def slice_middles(inputs: ReportInputs, numbers: Sequence[int]) -> list[float]:
    """Return the middle of each of some time slices, in minutes of training."""
    return [round(minutes_at(inputs, (number + 0.5) * SLICE_MS), 3) for number in numbers]


def round_lines(**values: Sequence[float | None]) -> dict[str, Values]:
    """Return lines with four digits, the precision of a plot."""
    return {name: [round_digits(value) for value in line] for name, line in values.items()}


def ratio_curves(inputs: ReportInputs, pairs: Sequence[tuple[float, float]]) -> Curves:
    """Return the ratio of each time slice's pair (numerator, denominator), and that of :data:`SMOOTHING` slices."""

    def ratio(part: Sequence[tuple[float, float]]) -> float | None:
        below = sum(denominator for _, denominator in part)
        return sum(numerator for numerator, _ in part) / below if below else None

    smoothed = [ratio(pairs[max(0, end - SMOOTHING) : end]) for end in range(1, len(pairs) + 1)]
    return Curves(
        slice_middles(inputs, inputs.slices), round_lines(slice=[ratio([pair]) for pair in pairs], smoothed=smoothed)
    )


def success_curves(inputs: ReportInputs) -> Curves:
    """Return training success over time."""
    parts = [inputs.progress.slices.get(number) for number in inputs.slices]
    pairs = [(part.reward, float(part.rewarded)) if part else (0.0, 0.0) for part in parts]
    return ratio_curves(inputs, pairs) if any(count for _, count in pairs) else Curves()


def rate_curves(inputs: ReportInputs) -> Curves:
    """Return environment steps a second over time."""
    parts = [inputs.progress.slices.get(number) for number in inputs.slices]
    pairs = [(float(part.steps) if part else 0.0, SLICE_MS / 1000) for part in parts]
    return ratio_curves(inputs, pairs)


def slot_shares(inputs: ReportInputs) -> Curves:
    """Return the shares of slot time by state over time, from the metrics of the env workers."""
    spent = inputs.readings.growth(names.ENV_SLOT_MS, "state", SLICE_MS)
    if not (inside := inputs.training_slices(spent)):
        return Curves()
    whole = {number: sum(spent[number].values()) or 1.0 for number in inside}
    shares = {state: [spent[n].get(state, 0.0) / whole[n] for n in inside] for state in SLOT_STATES}
    return Curves(slice_middles(inputs, inside), round_lines(**shares))


def staleness_curves(inputs: ReportInputs) -> Curves:
    """Return the staleness of trajectories at training, in versions, by optimizer step."""
    rows = [(float(step.train_step), ages) for step in inputs.trained if (ages := ages_of(inputs, step))]
    means, oldest = [mean_or_none(ages) for _, ages in rows], [float(max(ages)) for _, ages in rows]
    return Curves([step for step, _ in rows], round_lines(mean=means, oldest=oldest))


def pause_curve(inputs: ReportInputs) -> Curves:
    """Return the pause of generation for each weight switch (milliseconds), by version."""
    switches = sorted(inputs.progress.switches, key=lambda switch: switch.version)
    pauses = [switch.pause_ms for switch in switches]
    return Curves([float(switch.version) for switch in switches], round_lines(pause=pauses))


def learning_curves(inputs: ReportInputs) -> Curves:
    """Return the published metrics of :data:`LEARNING` by optimizer step."""
    left_out = set() if inputs.config.trainer.kl_beta else {"kl_reference"}
    rows = [step.metrics for step in inputs.trained]
    known = [name for name in LEARNING if name not in left_out and any(name in row for row in rows)]
    values = {name: [row.get(name) for row in rows] for name in known}
    return Curves([float(step.train_step) for step in inputs.trained], round_lines(**values))


def outcome_shares(inputs: ReportInputs) -> Curves:
    """Return the shares of outcomes of training episodes over time, without outcomes that never occurred."""
    width = max(1, -(-inputs.slice_count // MAX_BARS))
    counts: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for trajectory in inputs.progress.finished.values():
        if trajectory.purpose == "train":
            counts[trajectory.finished_ms // (SLICE_MS * width)][trajectory.outcome] += 1
    bars = sorted(counts)
    shares = {kind: [counts[bar][kind] / counts[bar].total() for bar in bars] for kind in get_args(OutcomeKind)}
    times = [round(minutes_at(inputs, (bar + 0.5) * SLICE_MS * width), 3) for bar in bars]
    return Curves(times, round_lines(**{kind: line for kind, line in shares.items() if any(line)}))


def choose_samples(before: EvaluationResult, after: EvaluationResult, count: int) -> list[EpisodePair]:
    """Choose tasks, one a page, with their episodes before and after: the largest gain in reward, then long ones.

    The last ones, up to half, are those that lost most.
    """
    earlier = {episode.index: episode for episode in before.episodes}
    pairs = [(earlier[e.index], e) for e in after.episodes if e.index in earlier]
    ranked = sorted(pairs, key=lambda pair: (-gain_of(pair), -pair[1].trajectory.steps, pair[0].index))
    shown = {first.page for first, _ in pick_pages([p for p in ranked if gain_of(p) > 0])[: count - count // 2]}
    losses = [pair for pair in reversed(ranked) if gain_of(pair) < 0 and pair[0].page not in shown]
    worse = pick_pages(losses)[: count // 2]
    taken = {first.page for first, _ in worse}
    better = pick_pages([pair for pair in ranked if pair[0].page not in taken])[: count - len(worse)]
    return [pair_episodes(second.task_id, first.trajectory, second.trajectory) for first, second in [*better, *worse]]


def gain_of(pair: tuple[EvaluationEpisode, EvaluationEpisode]) -> float:
    """Return the reward after training less that before."""
    first, second = (episode.trajectory.reward or 0.0 for episode in pair)
    return second - first


def pick_pages(
    pairs: Sequence[tuple[EvaluationEpisode, EvaluationEpisode]],
) -> list[tuple[EvaluationEpisode, EvaluationEpisode]]:
    """Return the first pair of each page."""
    chosen: dict[str, tuple[EvaluationEpisode, EvaluationEpisode]] = {}
    for pair in pairs:
        chosen.setdefault(pair[0].page, pair)
    return list(chosen.values())
