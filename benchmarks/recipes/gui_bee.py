"""Distinct screens of explorations of real pages, by the orders of the recipe ``gui-bee`` and at random.

``python -m benchmarks.recipes.gui_bee CONFIG --pages simulated/steps-3,…`` plays both on the same tasks until
they have executed as many actions, drawn from the same candidates. An episode has at most ``--steps`` of them.
"""

import argparse
import asyncio
import hashlib
import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec

from dart_recipes.gui_bee import rules
from dart_streams import actions, stateless_random
from dart_streams.config import Config, load
from dart_streams.config.tasks import Page, Task, page_of
from dart_streams.curation.hooks import Own
from dart_streams.episodes.trajectory_summary import KEY_DIGITS
from topics.rollout_orders import RolloutOrder
from topics.trajectories import Trajectory
from workers.env.backends.registry import backend_of
from workers.env.environment import EnvironmentBackend, Screen


class Exploration(msgspec.Struct, frozen=True):
    """Result of an exploration of one task: distinct screens, and executed actions."""

    task_id: str
    method: str
    screens: int
    steps: int


def random_plan(settings: rules.Settings, task_id: str, number: int) -> list[str]:
    """Return actions drawn at random from those that the recipe tries."""
    candidates = rules.candidate_actions(settings)
    return [
        candidates[stateless_random.number("random", task_id, number, step) % len(candidates)]
        for step in range(settings.steps)
    ]


def trajectory_of(order: RolloutOrder, screens: Sequence[str], steps: int) -> Trajectory:
    """Return the summary of an exploration, as the recorder makes it."""
    return Trajectory(
        trajectory_id=order.order_id,
        order_id=order.order_id,
        group_id=order.group_id,
        group_size=1,
        attempt=0,
        task_id=order.task_id,
        purpose="explore",
        outcome="truncated",
        reward=0.0,
        steps=steps,
        step_entropies=[],
        version_min=None,
        version_max=None,
        started_ms=0,
        finished_ms=0,
        screens=list(screens[:steps]),
        last_screen=screens[steps] if len(screens) > steps else "",
    )


async def play_plan(backend: EnvironmentBackend, task: Task, plan: Sequence[str]) -> tuple[list[str], int]:
    """Execute a plan in a new episode; return the keys of its screens and the number of executed actions."""
    environment = await backend.open(task)
    try:
        keys = [screen_key(await environment.reset(task))]
        for number, text in enumerate(plan):
            screen = await environment.step(actions.parse(text), str(number))
            keys.append(screen_key(screen))
            if screen.done:
                break
        return keys, len(keys) - 1
    finally:
        await environment.close()


def screen_key(screen: Screen) -> str:
    """Return the key of a screen, as in a trajectory."""
    return hashlib.sha256(screen.image).hexdigest()[:KEY_DIGITS] if screen.image else ""


async def explore_by_orders(
    backend: EnvironmentBackend, task: Task, settings: rules.Settings, most: int
) -> Exploration:
    """Explore a task by ``most`` actions of the recipe's orders, each made of what the earlier ones found."""
    own = Own(settings, rules.Explored())
    seen: set[str] = set()
    steps = 0
    first = rules.explore_order(task.task_id, -1, [])
    orders = rules.order_exploration(own, trajectory_of(first, [], 0))
    while orders and steps < most:
        [order] = orders
        keys, taken = await play_plan(backend, task, order.plan[: most - steps])
        seen |= set(keys) - {""}
        steps += taken
        orders = rules.order_exploration(own, trajectory_of(order, keys, taken))
    return Exploration(task.task_id, "gui-bee", len(seen), steps)


async def explore_at_random(
    backend: EnvironmentBackend, task: Task, settings: rules.Settings, most: int
) -> Exploration:
    """Explore a task by ``most`` actions at random."""
    seen: set[str] = set()
    steps = number = 0
    while steps < most:
        plan = random_plan(settings, task.task_id, number)
        keys, taken = await play_plan(backend, task, plan[: most - steps])
        seen |= set(keys) - {""}
        steps, number = steps + taken, number + 1
    return Exploration(task.task_id, "random", len(seen), steps)


async def compare_on(
    config: Config, pages: Sequence[str], tasks: int, settings: rules.Settings, most: int
) -> list[Exploration]:
    """Explore the first ``tasks`` tasks of each page by both, with ``most`` actions each, all at a time."""
    backend = backend_of(config)
    await backend.start()
    runs = []
    try:
        for name in pages:
            environment, _, page = name.partition("/")
            drawn = Page(
                environment=environment,
                page=page,
                max_steps=99,
                train_seeds=(0, tasks),
                heldout_seeds=(10**6, 10**6 + 1),
            )
            for task in drawn.tasks("train"):
                runs.append(explore_by_orders(backend, task, settings, most))
                runs.append(explore_at_random(backend, task, settings, most))
        return await asyncio.gather(*runs)
    finally:
        await backend.stop()


def report_lines(results: Sequence[Exploration]) -> list[str]:
    """Return a row for each page and method: distinct screens of each task, and their mean a hundred actions."""
    lines = []
    groups: dict[tuple[str, str], list[Exploration]] = {}
    for result in results:
        groups.setdefault((page_of(result.task_id), result.method), []).append(result)
    for (page, method), found in groups.items():
        rate = statistics.fmean(100 * one.screens / one.steps for one in found)
        screens = [one.screens for one in found]
        lines.append(f"{page:<32} {method:<8} {found[0].steps} actions, screens {screens}: {rate:.1f} a hundred")
    return lines


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--pages", required=True)
    parser.add_argument("--tasks", type=int, default=3)
    parser.add_argument("--actions", type=int, default=120)
    parser.add_argument("--steps", type=int, default=10)
    given = parser.parse_args()
    settings = rules.Settings(episodes=given.actions, steps=given.steps)
    pages = given.pages.split(",")
    results = asyncio.run(compare_on(load(given.config), pages, given.tasks, settings, given.actions))
    for line in report_lines(results):
        print(line)  # noqa: T201


if __name__ == "__main__":
    main()
