"""Mobile-R1: its stages in order, and the prefix and box of a single action."""

from plugins.recipes.tests.agents import groups_in, orders_in, played, recipe_config
from plugins.recipes.tests.test_ui_s1 import demonstrated
from tests.unit.curation.test_dispatch import Dispatch

RECIPE = {"recipe": "mobile-r1", "trainer": {"groups_per_step": 999}}


def played_stages(groups: int, **settings) -> Dispatch:
    """Return dispatch after demonstrations of two of three tasks, and ``groups`` groups."""
    agent = Dispatch(tasks=3, recipes={"mobile-r1": settings}, **RECIPE)
    for number in (0, 1):
        demonstrated(agent, f"simulated/grid#{number}")
    agent.play(groups, lambda order: order.sample % 2)
    return agent


def test_single_actions_come_before_whole_tasks():
    agent = played_stages(24, action_groups=12, bound=9)
    early = [order for order in agent.orders if int(order.group_id[1:]) < 12]
    late = [order for order in agent.orders if int(order.group_id[1:]) >= 12]
    assert {order.task_id for order in early} == {"simulated/grid#0", "simulated/grid#1"}, "those with a recording"
    guides = {order.guide for order in early}
    assert {(guide.mode, guide.single, guide.bound) for guide in guides} == {("prefix", True, 9)}
    assert all(order.guide.trajectory_id == f"shown-{order.task_id}" for order in early)
    assert {order.task_id for order in late} == {f"simulated/grid#{number}" for number in range(3)}
    assert {order.guide for order in late} == {None}


def test_a_groups_rollouts_have_the_same_prefix_and_groups_have_others():
    agent = played_stages(12, action_groups=12)
    shares = {}
    for order in agent.orders[: 12 * 8]:
        shares.setdefault(order.group_id, set()).add(order.guide.share)
    assert all(len(of_group) == 1 for of_group in shares.values())
    assert len(set.union(*shares.values())) == 12


def test_without_a_recording_tasks_are_ordered_whole():
    agent = Dispatch(tasks=3, **RECIPE)
    assert {order.guide for order in agent.weights()} == {None}


def test_a_single_action_that_matches_is_no_recording():
    """It is a success of the worker's comparison: the task itself was not solved."""
    agent = played_stages(6, action_groups=6)
    memory = agent.state.memories["mobile-r1"]
    assert memory.trajectories == {f"simulated/grid#{number}": f"shown-simulated/grid#{number}" for number in (0, 1)}
    agent = Dispatch(tasks=1, **RECIPE)
    first = agent.weights()[0]
    agent.finish(first, "success", guided=True)
    assert agent.state.memories["mobile-r1"].trajectories == {}
    assert agent.state.tasks[first.task_id].finishes == []


def test_a_circle_trains_on_single_actions_before_whole_trajectories():
    circle = played(recipe_config("mobile-r1", recipes={"mobile-r1": {"action_groups": 40}}))
    ended = {written.event.trajectory_id: written.event for written in circle.logs["trajectories"]}
    guided = {order.order_id for order in orders_in(circle) if order.guide}
    assert guided and all(int(name[1:7]) < 40 for name in guided)
    for group in groups_in(circle):
        for member in group.members:
            trajectory = ended[member.trajectory_id]
            single = [trajectory.steps - 1] if trajectory.guided else list(range(trajectory.steps))
            assert member.selected == single
