"""Two evaluations side by side: of two versions of a run, or of two runs; by page with intervals, and by task. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dart_streams.config import Config
from dart_streams.config.tasks import TaskSet
from dart_streams.console.runs import evaluation
from dart_streams.console.runs.evaluation import EvaluationResult
from dart_streams.console.runs.run_state import RunState
from dart_streams.console.views.report_metrics import change_fields, rate_fields
from topics.trajectories import Trajectory


class EvaluatedRun(msgspec.Struct, frozen=True):
    """A run, and what its evaluations are computed from."""

    name: str
    config: Config
    tasks: TaskSet
    state: RunState

    @property
    def versions(self) -> list[int]:
        """The weight versions that were evaluated, the oldest first."""
        return evaluation.evaluated_versions(self.state)


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One side: a version of a run, its success with the 95 % interval, and the versions that it could be.

    ``version`` is null, and ``overall`` empty, where nothing was evaluated.
    """

    run: str
    version: int | None
    versions: list[int]
    overall: dict[str, Any]
    faults: int


class PageRates(msgspec.Struct, frozen=True):
    """A page's success on both sides, empty where it was not played, and the change with its interval."""

    page: str
    a: dict[str, Any]
    b: dict[str, Any]
    change: dict[str, Any] | None


class Played(msgspec.Struct, frozen=True):
    """An episode of a task, briefly."""

    trajectory_id: str
    outcome: str
    reward: float | None
    steps: int
    version: int | None


class TaskPair(msgspec.Struct, frozen=True):
    """A task's episode on each side; null where it was not played."""

    task_id: str
    a: Played | None
    b: Played | None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Both sides, the change with its 95 % interval (null without both), pages, and tasks: those that differ first."""

    a: Side
    b: Side
    temperature: float
    temperatures: list[float]
    change: dict[str, Any] | None
    pages: list[PageRates]
    tasks: list[TaskPair]


def compare(
    first: EvaluatedRun, second: EvaluatedRun, versions: tuple[int | None, int | None], temperature: float | None
) -> Comparison:
    """Compare two evaluations; by default the oldest and the newest of one run, and the newest of each of two."""
    same = first is second
    chosen_a = versions[0] if versions[0] is not None else default(first, oldest=same)
    chosen_b = versions[1] if versions[1] is not None else default(second, oldest=False)
    result_a, result_b = result_of(first, chosen_a, temperature), result_of(second, chosen_b, temperature)
    found_a, found_b = result_a.per_page if result_a else {}, result_b.per_page if result_b else {}
    pages = [
        PageRates(
            page,
            rate_fields(found_a.get(page)),
            rate_fields(found_b.get(page)),
            change_fields(found_a[page], found_b[page]) if page in found_a and page in found_b else None,
        )
        for page in sorted({*found_a, *found_b})
    ]
    both = result_a and result_b and result_a.overall.trials and result_b.overall.trials
    temperatures = list(first.config.evaluation.temperatures)
    return Comparison(
        a=side(first, chosen_a, result_a),
        b=side(second, chosen_b, result_b),
        temperature=temperatures[0] if temperature is None else temperature,
        temperatures=temperatures,
        change=change_fields(result_a.overall, result_b.overall) if result_a and result_b and both else None,
        pages=pages,
        tasks=pairs(by_task(result_a), by_task(result_b)),
    )


def default(run: EvaluatedRun, *, oldest: bool) -> int | None:
    """Return the version to begin with."""
    known = run.versions
    return (known[0] if oldest else known[-1]) if known else None


def result_of(run: EvaluatedRun, version: int | None, temperature: float | None) -> EvaluationResult | None:
    """Return the evaluation of a version, None where there was none."""
    if version not in run.versions:
        return None
    assert version is not None
    return evaluation.read(run.config, run.tasks, run.state, version, temperature)


def side(run: EvaluatedRun, version: int | None, result: EvaluationResult | None) -> Side:
    """Return one side."""
    return Side(
        run=run.name,
        version=version if result else None,
        versions=run.versions,
        overall=rate_fields(result.overall) if result else {},
        faults=result.faults if result else 0,
    )


def by_task(result: EvaluationResult | None) -> dict[str, Trajectory]:
    """Return the first episode of each task."""
    found: dict[str, Trajectory] = {}
    for episode in result.episodes if result else ():
        found.setdefault(episode.task_id, episode.trajectory)
    return found


def pairs(first: Mapping[str, Trajectory], second: Mapping[str, Trajectory]) -> list[TaskPair]:
    """Return the tasks of both sides: those whose reward changed most first, then by name."""
    found = [TaskPair(name, brief(first.get(name)), brief(second.get(name))) for name in {*first, *second}]

    def rank(pair: TaskPair) -> tuple[float, str]:
        return -abs(reward(pair.a) - reward(pair.b)), pair.task_id

    return sorted(found, key=rank)


def reward(played: Played | None) -> float:
    """Return an episode's reward, 0 without one."""
    return (played.reward or 0.0) if played else 0.0


def brief(trajectory: Trajectory | None) -> Played | None:
    """Return an episode briefly."""
    if trajectory is None:
        return None
    return Played(
        trajectory.trajectory_id, trajectory.outcome, trajectory.reward, trajectory.steps, trajectory.version_max
    )


def of_task(task_id: str, first: EvaluatedRun, second: EvaluatedRun) -> TaskPair:
    """Return a task that is not held out: its first and newest training episode, or the newest of each of two runs."""
    return TaskPair(
        task_id,
        brief(trained_episode(played(first, task_id), oldest=first is second)),
        brief(trained_episode(played(second, task_id), oldest=False)),
    )


def played(run: EvaluatedRun, task_id: str) -> list[Trajectory]:
    """Return a task's training episodes with a reward, the oldest first."""
    found = [
        one
        for one in run.state.finished.values()
        if one.task_id == task_id and one.purpose == "train" and one.reward is not None
    ]
    return sorted(found, key=lambda one: one.finished_ms)


def trained_episode(found: Sequence[Trajectory], *, oldest: bool) -> Trajectory | None:
    """Return the oldest or the newest episode, None of none."""
    return (found[0] if oldest else found[-1]) if found else None
