"""GUI-Bee (arXiv 2501.13896): counts (screen, action) pairs, and orders explorations of what was tried least."""

from typing import Annotated

import msgspec
from msgspec import Meta

from dart_streams import actions
from dart_streams.actions import Click
from dart_streams.config.section import Count, Optional
from dart_streams.curation.hooks import Own, Rules
from dart_streams.recipes.gui_bee.graph import ExplorationGraph, click_places, plan_episode
from topics.rollout_orders import RolloutOrder
from topics.trajectories import Trajectory
from topics.values import Sampling

GROUP = "explore"
Few = Annotated[int, Meta(ge=1, le=100)]
Pixels = Annotated[int, Meta(ge=1, le=2**16)]


class Settings(Optional, frozen=True):
    """The keys of ``[recipes.gui-bee]``."""

    pages: tuple[str, ...] = ()
    """The pages to explore, such as `miniwob/click-tab-2`; empty: all that are played."""
    episodes: Count = 30
    """Explorations of each page."""
    steps: Few = 10
    """Actions of an exploration."""
    width: Pixels = 160
    """Width of the screen, in pixels."""
    height: Pixels = 210
    """Height of the screen, in pixels."""
    columns: Few = 8
    """Columns of the grid of places to click."""
    rows: Few = 10
    """Rows of the grid of places to click."""


class Explored(msgspec.Struct):
    """The graph of each page, the number of its orders, and the plan of its open order with that order's id."""

    graphs: dict[str, ExplorationGraph] = {}
    ordered: dict[str, int] = {}
    open: dict[str, tuple[str, list[str]]] = {}


def page_of(task_id: str) -> str:
    """Return the page of a task: its name without the seed."""
    return task_id.partition("#")[0]


def candidate_actions(settings: Settings) -> list[str]:
    """Return the actions that are tried on each screen: clicks on a grid, in pixels of the screen."""
    places = click_places(settings.width, settings.height, settings.columns, settings.rows)
    return [actions.format(Click(x, y)) for x, y in places]


def order_exploration(own: Own, trajectory: Trajectory) -> list[RolloutOrder]:
    """Return the next exploration of a trajectory's page, unless one is open or all were ordered.

    A page is explored from the task of its first trajectory.
    """
    memory, settings, page = own.memory, own.settings, page_of(trajectory.task_id)
    if settings.pages and page not in settings.pages:
        return []
    graph = memory.graphs.setdefault(page, ExplorationGraph(trajectory.task_id))
    if trajectory.purpose == "explore" and page in memory.open and memory.open[page][0] == trajectory.order_id:
        _, plan = memory.open.pop(page)
        graph.add(trajectory.screens, plan, trajectory.last_screen)
    number = memory.ordered.get(page, 0)
    if page in memory.open or number >= settings.episodes:
        return []
    plan = plan_episode(graph, candidate_actions(settings), settings.steps, page, number)
    memory.ordered[page] = number + 1
    order = explore_order(graph.task_id, number, plan)
    memory.open[page] = (order.order_id, plan)
    return [order]


def explore_order(task_id: str, number: int, plan: list[str]) -> RolloutOrder:
    """Return the order of an exploration; one step more than the plan has shows the screen after its last action."""
    return RolloutOrder(
        order_id=f"{GROUP}-{number}/{task_id}",
        group_id=GROUP,
        group_size=1,
        sample=0,
        attempt=0,
        task_id=task_id,
        max_steps=len(plan) + 1,
        purpose="explore",
        sampling=Sampling(),
        after_version=0,
        plan=plan,
    )


RULES = Rules(further_orders=order_exploration, memory=Explored)
