"""Evaluation on the held-out tasks: its orders and its result, read from the topics. Pure.

An evaluation of a weight version, or of an endpoint's model, is known by its order ids alone, so asking for the same
one again orders only what is missing, and its result can be read from the topics at any later time.
"""

import math

import msgspec

from dart_streams.config import Config
from dart_streams.config.tasks import Task, TaskSet
from dart_streams.console.runs.run_state import RunState
from dart_streams.curation.order_tracker import ORDER_ATTEMPTS
from dart_streams.errors import ConfigError
from topics.rollout_orders import RolloutOrder
from topics.trajectories import Trajectory
from topics.transitions import next_attempt

Z_95 = 1.959963984540054


class Rate(msgspec.Struct, frozen=True):
    """``successes`` of ``trials`` (rewards may be fractional) with the 95 % Wilson interval [low, high]."""

    successes: float
    trials: int
    rate: float
    low: float
    high: float


def wilson_rate(successes: float, trials: int) -> Rate:
    """Return a rate with its Wilson score interval (Wilson 1927); without trials it is 0 in [0, 1]."""
    if trials == 0:
        return Rate(successes, 0, 0.0, 0.0, 1.0)
    share = successes / trials
    center = share + Z_95**2 / (2 * trials)
    spread = Z_95 * math.sqrt(share * (1 - share) / trials + Z_95**2 / (4 * trials**2))
    scale = 1 + Z_95**2 / trials
    low = 0.0 if successes == 0 else max(0.0, (center - spread) / scale)
    high = 1.0 if successes == trials else min(1.0, (center + spread) / scale)
    return Rate(successes, trials, share, low, high)


def rate_difference(before: Rate, after: Rate) -> tuple[float, float, float]:
    """Return ``after`` less ``before`` with its 95 % interval (Newcombe 1998, method 10, for unpaired samples)."""
    change = after.rate - before.rate
    low = change - math.hypot(after.rate - after.low, before.high - before.rate)
    high = change + math.hypot(after.high - after.rate, before.rate - before.low)
    return change, max(-1.0, low), min(1.0, high)


class EvaluationEpisode(msgspec.Struct, frozen=True):
    """One evaluated task; ``index`` pairs it with the same task of another version's evaluation."""

    index: int
    task_id: str
    page: str
    trajectory: Trajectory


class EvaluationResult(msgspec.Struct, frozen=True):
    """The success of a weight version. ``faults`` counts episodes that ended with a fault; they are in no rate."""

    version: int
    overall: Rate
    per_page: dict[str, Rate]
    episodes: tuple[EvaluationEpisode, ...]
    faults: int


def pick_tasks(tasks: TaskSet, episodes: int) -> list[Task]:
    """Choose held-out tasks, spread evenly over the pages; a page with fewer seeds than needed repeats them."""
    by_page: dict[str, list[Task]] = {}
    for task in tasks.heldout:
        by_page.setdefault(task.page, []).append(task)
    if not by_page:
        raise ConfigError("the task set has no held-out tasks: give its pages heldout_seeds")
    pages = list(by_page.values())
    return [page[index // len(pages) % len(page)] for index in range(episodes) for page in [pages[index % len(pages)]]]


def build_orders(config: Config, tasks: TaskSet, version: int, temperature: float | None = None) -> list[RolloutOrder]:
    """Return the orders of an evaluation of ``version`` at one temperature, the same ones each time.

    By default it is the first of ``evaluation.temperatures``. At a further one each held-out task is played once at
    most: a second greedy rollout of a task would repeat the first.
    """
    settings = config.evaluation
    endpoint = config.rollout.endpoint_model
    group_id, episodes = f"eval-{endpoint}-v{version}" if endpoint else f"eval-v{version}", settings.episodes
    if temperature is None:
        temperature = settings.temperatures[0]
    elif temperature != settings.temperatures[0]:
        group_id, episodes = f"{group_id}-t{temperature:g}", min(episodes, len(tasks.heldout))
    return [
        RolloutOrder(
            order_id=f"{group_id}-{index:04d}-0",
            group_id=group_id,
            group_size=episodes,
            sample=index,
            attempt=0,
            task_id=task.task_id,
            max_steps=task.max_steps,
            purpose="eval",
            sampling=config.sampling(temperature),
            after_version=version,
        )
        for index, task in enumerate(pick_tasks(tasks, episodes))
    ]


def retry(order: RolloutOrder) -> RolloutOrder:
    """Return the next attempt of an order that ended with a fault."""
    stem, attempt = order.order_id.rpartition("-")[0], order.attempt + 1
    return msgspec.structs.replace(order, order_id=f"{stem}-{attempt}", attempt=attempt)


def newest_attempt(progress: RunState, first: RolloutOrder, attempts: int) -> tuple[RolloutOrder, Trajectory | None]:
    """Return the attempt of an order that counts, and its trajectory: the first without a fault, or the last one."""
    order, trajectory = first, progress.finished.get(first.order_id)
    while trajectory and next_attempt(trajectory.outcome, order.attempt, attempts) is not None:
        order = retry(order)
        trajectory = progress.finished.get(order.order_id)
    return order, trajectory


def missing_orders(progress: RunState, wanted: list[RolloutOrder], attempts: int) -> list[RolloutOrder]:
    """Return what has to be ordered now: what never was, and the next attempt of what ended with a fault."""
    newest = (newest_attempt(progress, first, attempts)[0] for first in wanted)
    return [order for order in newest if order.order_id not in progress.orders]


def final_trajectories(progress: RunState, wanted: list[RolloutOrder], attempts: int) -> dict[int, Trajectory]:
    """Return the final trajectory of each order, by its index: a rewarded one, or the fault of the last attempt."""
    found = {first.sample: newest_attempt(progress, first, attempts)[1] for first in wanted}
    return {sample: trajectory for sample, trajectory in found.items() if trajectory is not None}


def evaluation_result(version: int, trajectories: dict[int, Trajectory], tasks: TaskSet) -> EvaluationResult:
    """Return the result of an evaluation."""
    episodes = [
        EvaluationEpisode(index, trajectory.task_id, tasks.get(trajectory.task_id).page, trajectory)
        for index, trajectory in sorted(trajectories.items())
    ]
    counted = [episode for episode in episodes if episode.trajectory.reward is not None]
    pages = sorted({episode.page for episode in episodes})
    return EvaluationResult(
        version=version,
        overall=rate_of(counted),
        per_page={page: rate_of([episode for episode in counted if episode.page == page]) for page in pages},
        episodes=tuple(episodes),
        faults=len(episodes) - len(counted),
    )


def rate_of(episodes: list[EvaluationEpisode]) -> Rate:
    """Return the success rate of rewarded episodes."""
    return wilson_rate(sum(episode.trajectory.reward or 0.0 for episode in episodes), len(episodes))


def read(
    config: Config, tasks: TaskSet, progress: RunState, version: int, temperature: float | None = None
) -> EvaluationResult:
    """Read an evaluation's result at one temperature, by default the first, from the log."""
    wanted = build_orders(config, tasks, version, temperature)
    return evaluation_result(version, final_trajectories(progress, wanted, ORDER_ATTEMPTS), tasks)


def evaluated_versions(progress: RunState) -> list[int]:
    """Return the weight versions whose evaluation was ordered, the oldest first."""
    return sorted({order.after_version for order, _ in progress.orders.values() if order.purpose == "eval"})


class EvaluationRow(msgspec.Struct, frozen=True):
    """A page's result, for a table."""

    page: str
    success: float
    low: float
    high: float
    episodes: int

    @classmethod
    def of(cls, page: str, measured: Rate) -> "EvaluationRow":
        """Return a page's rate as a row."""
        success, low, high = (round(value, 3) for value in (measured.rate, measured.low, measured.high))
        return cls(page, success, low, high, measured.trials)
