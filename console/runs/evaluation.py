"""Orders and results of an evaluation on the held-out tasks, read from the topics. Pure.

Order ids derive from the weight version, or the endpoint's model. A repeated evaluation orders only missing rollouts,
and its result can be read from the topics at any later time.
"""

import math

import msgspec

from console.runs.run_state import RunState
from dart_streams.config import Config
from dart_streams.config.tasks import Task, TaskSet
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
    """One evaluated task; ``index`` pairs it with the same task in another version's evaluation."""

    index: int
    task_id: str
    page: str
    trajectory: Trajectory


class EvaluationResult(msgspec.Struct, frozen=True):
    """Success of a weight version; ``faults`` counts episodes that ended with a fault, which no rate includes."""

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
    """Return the orders of an evaluation of ``version`` at one temperature, deterministic in its arguments.

    The default is the first of ``evaluation.temperatures``. At others each held-out task is played once at most,
    because a second greedy rollout would repeat the first.
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


def all_orders(config: Config, tasks: TaskSet, version: int) -> list[list[RolloutOrder]]:
    """Return the orders of an evaluation of ``version`` at each temperature."""
    return [build_orders(config, tasks, version, value) for value in dict.fromkeys(config.evaluation.temperatures)]


def newest_attempt(progress: RunState, order: RolloutOrder) -> tuple[RolloutOrder, Trajectory | None]:
    """Return the first attempt without a fault, or the last attempt, and its trajectory."""
    trajectory = progress.finished.get(order.order_id)
    while trajectory and (attempt := next_attempt(trajectory.outcome, order.attempt, ORDER_ATTEMPTS)) is not None:
        order_id = f"{order.order_id.rpartition('-')[0]}-{attempt}"
        order = msgspec.structs.replace(order, order_id=order_id, attempt=attempt)
        trajectory = progress.finished.get(order_id)
    return order, trajectory


def missing_orders(progress: RunState, wanted: list[RolloutOrder]) -> list[RolloutOrder]:
    """Return the orders to publish now: missing ones, and the next attempts of those that ended with a fault."""
    newest = (newest_attempt(progress, first)[0] for first in wanted)
    return [order for order in newest if order.order_id not in progress.orders]


def final_trajectories(progress: RunState, wanted: list[RolloutOrder]) -> dict[int, Trajectory]:
    """Return each order's final trajectory by index: a rewarded one, or the fault of the last attempt."""
    final = {first.sample: newest_attempt(progress, first)[1] for first in wanted}
    return {sample: trajectory for sample, trajectory in final.items() if trajectory is not None}


def evaluation_result(version: int, trajectories: dict[int, Trajectory], tasks: TaskSet) -> EvaluationResult:
    """Return the result of an evaluation from its final trajectories."""
    episodes = [
        EvaluationEpisode(index, trajectory.task_id, tasks.get(trajectory.task_id).page, trajectory)
        for index, trajectory in sorted(trajectories.items())
    ]
    rewards: dict[str, list[float]] = {page: [] for page in sorted({episode.page for episode in episodes})}
    for episode in episodes:
        if episode.trajectory.reward is not None:
            rewards[episode.page].append(episode.trajectory.reward)
    rewarded = [reward for of_page in rewards.values() for reward in of_page]
    return EvaluationResult(
        version=version,
        overall=wilson_rate(math.fsum(rewarded), len(rewarded)),
        per_page={page: wilson_rate(math.fsum(of_page), len(of_page)) for page, of_page in rewards.items()},
        episodes=tuple(episodes),
        faults=len(episodes) - len(rewarded),
    )


def read(
    config: Config, tasks: TaskSet, progress: RunState, version: int, temperature: float | None = None
) -> EvaluationResult:
    """Read an evaluation's result at one temperature, by default the first, from the log."""
    wanted = build_orders(config, tasks, version, temperature)
    return evaluation_result(version, final_trajectories(progress, wanted), tasks)


def evaluated_versions(progress: RunState) -> list[int]:
    """Return the weight versions whose evaluation was ordered, the oldest first."""
    return sorted({order.after_version for order, _ in progress.orders.values() if order.purpose == "eval"})


class EvaluationRow(msgspec.Struct, frozen=True):
    """A page's result as a row of a table, rounded."""

    page: str
    success: float
    low: float
    high: float
    episodes: int
