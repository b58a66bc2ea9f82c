"""CRAFT-GUI: the phases of its curriculum."""

from dart_streams.config.tasks import Page, TaskSet
from dart_streams.curation import dispatch
from tests.unit.curation.test_dispatch import Dispatch
from tests.unit.recipes.agents import orders_in, played, recipe_config, task_set


def test_a_curriculum_goes_from_short_tasks_to_all():
    pages = [
        Page(environment="simulated", page=name, max_steps=steps, train_seeds=(0, 4), heldout_seeds=(9, 10))
        for name, steps in (("short", 2), ("middle", 5), ("long", 20))
    ]
    phases = [{"groups": 12, "max_steps": 2}, {"groups": 12, "max_steps": 5}]
    agent = Dispatch(recipe="craft-gui", recipes={"craft-gui": {"phases": phases}}, trainer={"groups_per_step": 99})
    agent.settings = dispatch.DispatchSettings.of(agent.config, TaskSet(pages))
    groups = agent.play(48, lambda order: order.sample % 2)
    assert {name.split("#")[0] for name in groups[:12]} == {"simulated/short"}
    assert {name.split("#")[0] for name in groups[12:24]} == {"simulated/short", "simulated/middle"}
    assert len({name.split("#")[0] for name in groups[24:]}) == 3


def test_a_phase_without_tasks_is_none():
    agent = Dispatch(recipe="craft-gui", recipes={"craft-gui": {"phases": [{"groups": 9, "max_steps": 1}]}})
    assert agent.weights()


def test_a_circle_begins_with_short_tasks():
    config = recipe_config("craft-gui")
    [phase] = config.recipes["craft-gui"]["phases"]
    limits = {task.task_id: task.max_steps for task in task_set(config).train}
    assert max(limits.values()) > phase["max_steps"]
    ordered = orders_in(played(config, rounds=9 * phase["groups"]))
    early = [order for order in ordered if int(order.group_id[1:]) < phase["groups"]]
    late = [order for order in ordered if int(order.group_id[1:]) >= phase["groups"]]
    assert {limits[order.task_id] for order in early} <= set(range(phase["max_steps"] + 1))
    assert max(limits[order.task_id] for order in late) > phase["max_steps"]
