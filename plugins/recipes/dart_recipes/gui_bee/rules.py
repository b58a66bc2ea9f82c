"""GUI-Bee (arXiv 2501.13896): counts (screen, action) pairs, and orders explorations of what was tried least.

Screens that explorations find become start states of their task.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from dart_recipes.gui_bee.graph import ExplorationGraph, click_places, plan_episode
from dart_streams import actions, stateless_random
from dart_streams.actions import Click
from dart_streams.config.section import Count, Optional, Share
from dart_streams.config.tasks import page_of
from dart_streams.curation.hooks import ExplorationFinish, Own, Rules
from topics.rollout_orders import Guide, RolloutOrder
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
    start_share: Share = 0.0
    """The share of a task's groups that begin at a screen that its explorations found."""
    start_actions: Few = 3
    """The most actions that lead to such a screen; the policy has the other steps of the episode."""


class Explored(msgspec.Struct):
    """The graph of each page, the number of its orders, and the plan of its open order with that order's id.

    Dispatch has ``starts`` alone, the start states of each task: an exploration's trajectory and the number of its
    actions.
    """

    graphs: dict[str, ExplorationGraph] = {}
    ordered: dict[str, int] = {}
    open: dict[str, tuple[str, list[str]]] = {}
    starts: dict[str, list[tuple[str, int]]] = {}


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


def find_starts(own: Own, trajectory: Trajectory) -> list[int]:
    """Return the numbers of an exploration's actions that lead to screens that were not seen before."""
    memory, settings, page = own.memory, own.settings, page_of(trajectory.task_id)
    graph = memory.graphs.get(page)
    if not settings.start_share or graph is None or memory.open.get(page, ("",))[0] != trajectory.order_id:
        return []
    last = min(settings.start_actions, trajectory.steps - 1)
    return [step for step in graph.find_new(trajectory.screens).values() if step <= last]


def remember_starts(own: Own, event: object) -> None:
    """Remember the start states that an exploration found."""
    if isinstance(event, ExplorationFinish):
        known = own.memory.starts.setdefault(event.task_id, [])
        known += [(event.trajectory_id, step) for step in event.starts]


def order_from_start(own: Own, order: RolloutOrder) -> RolloutOrder:
    """Return the order with the actions that lead to a start state, for ``start_share`` of a task's groups.

    All rollouts of a group begin at the same screen, one of those known when the group was opened.
    """
    starts = [known for known in own.memory.starts.get(order.task_id, ()) if known[1] < order.max_steps]
    if not starts or stateless_random.share("begins", order.group_id) >= own.settings.start_share:
        return order
    start = starts[stateless_random.number("start", order.group_id) % len(starts)]
    return msgspec.structs.replace(order, guide=Guide(trajectory_id=start[0], mode="prefix", steps=start[1]))


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


RULES = Rules(
    further_orders=order_exploration,
    start_states=find_starts,
    order=order_from_start,
    remember=remember_starts,
    memory=Explored,
)
