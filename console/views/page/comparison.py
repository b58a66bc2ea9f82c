"""Two evaluations side by side, of two versions of a run or of two runs: by page with intervals, and by task. Pure."""

from typing import Any

import msgspec

from console.runs import evaluation
from console.runs.evaluation import EvaluationResult
from console.views.page.episodes import EpisodePair, PlayedEpisode, pair_episodes
from console.views.page.natural_order import natural_key
from console.views.page.source import RunSource
from console.views.report_metrics import change_fields, rate_fields
from topics.trajectories import Trajectory


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """A version with its success and 95 % interval, null and empty without an evaluation; ``versions`` to choose."""

    run: str
    version: int | None
    versions: list[int]
    overall: dict[str, Any]
    faults: int


class PageRates(msgspec.Struct, frozen=True):
    """The success on a page on both sides, empty where it was not played, and the change with its interval."""

    page: str
    a: dict[str, Any]
    b: dict[str, Any]
    change: dict[str, Any] | None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Both sides and the change with its 95 % interval, null without both; tasks with the largest change first."""

    a: Side
    b: Side
    temperature: float
    temperatures: list[float]
    change: dict[str, Any] | None
    pages: list[PageRates]
    tasks: list[EpisodePair]


def compare(
    first: RunSource, second: RunSource, versions: tuple[int | None, int | None], temperature: float | None
) -> Comparison:
    """Compare two evaluations: by default the oldest and the newest of one run, or the newest of each of two."""
    result_a = read_result(first, versions[0], temperature, 0 if first is second else -1)
    result_b = read_result(second, versions[1], temperature, -1)
    rates_a, rates_b = result_a.per_page if result_a else {}, result_b.per_page if result_b else {}
    pages = [
        PageRates(
            page,
            rate_fields(rates_a.get(page)),
            rate_fields(rates_b.get(page)),
            change_fields(rates_a[page], rates_b[page]) if page in rates_a and page in rates_b else None,
        )
        for page in sorted({*rates_a, *rates_b})
    ]
    both = result_a and result_b and result_a.overall.trials and result_b.overall.trials
    temperatures = list(first.config.evaluation.temperatures)
    return Comparison(
        a=evaluated_side(first, result_a),
        b=evaluated_side(second, result_b),
        temperature=temperatures[0] if temperature is None else temperature,
        temperatures=temperatures,
        change=change_fields(result_a.overall, result_b.overall) if result_a and result_b and both else None,
        pages=pages,
        tasks=pair_tasks(first_episodes(result_a), first_episodes(result_b)),
    )


def read_result(
    run: RunSource, version: int | None, temperature: float | None, default: int
) -> EvaluationResult | None:
    """Return the evaluation of a version, or of the evaluated one at the index ``default``; None without one."""
    evaluated = evaluation.evaluated_versions(run.state)
    wanted = evaluated[default] if version is None and evaluated else version
    return evaluation.read(run.config, run.task_set(), run.state, wanted, temperature) if wanted in evaluated else None


def evaluated_side(run: RunSource, result: EvaluationResult | None) -> Side:
    """Return one side of a comparison."""
    return Side(
        run=run.name,
        version=result.version if result else None,
        versions=evaluation.evaluated_versions(run.state),
        overall=rate_fields(result.overall) if result else {},
        faults=result.faults if result else 0,
    )


def first_episodes(result: EvaluationResult | None) -> dict[str, Trajectory]:
    """Return the first episode of each task."""
    return {episode.task_id: episode.trajectory for episode in reversed(result.episodes)} if result else {}


def pair_tasks(first: dict[str, Trajectory], second: dict[str, Trajectory]) -> list[EpisodePair]:
    """Return the tasks of both sides, by the size of their change in reward and then by name."""

    def reward(episode: PlayedEpisode | None) -> float:
        return (episode.reward or 0.0) if episode else 0.0

    pairs = [pair_episodes(task_id, first.get(task_id), second.get(task_id)) for task_id in {*first, *second}]
    return sorted(pairs, key=lambda pair: (-abs(reward(pair.a) - reward(pair.b)), natural_key(pair.task_id)))


def compare_training_task(task_id: str, first: RunSource, second: RunSource) -> EpisodePair:
    """Return the first and the newest training episode of a task, or the newest of each of two runs."""
    episodes_a, episodes_b = training_episodes(first, task_id), training_episodes(second, task_id)
    return pair_episodes(
        task_id,
        episodes_a[0 if first is second else -1] if episodes_a else None,
        episodes_b[-1] if episodes_b else None,
    )


def training_episodes(run: RunSource, task_id: str) -> list[Trajectory]:
    """Return the training episodes of a task that count in its success rate, the oldest first."""
    episodes = [
        episode
        for episode in run.state.finished.values()
        if episode.task_id == task_id and episode.purpose == "train" and episode.own_reward is not None
    ]
    return sorted(episodes, key=lambda episode: episode.finished_ms)
