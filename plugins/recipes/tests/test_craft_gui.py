"""CRAFT-GUI: the phases of its curriculum, and the table of its mixed reward."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_recipes.craft_gui import rules
from dart_streams.config.tasks import Page, TaskSet
from dart_streams.curation import dispatch
from dart_streams.curation.hooks import Own
from dart_streams.curation.members import Finish
from plugins.recipes.tests.agents import groups_in, orders_in, played, recipe_config, task_set
from tests import events
from tests.unit.curation.test_dispatch import Dispatch
from tests.unit.curation.test_groups import Groups
from topics.trajectories import StepAction

CLICK, NEAR, FAR = (StepAction(name="click", x=x, y=y) for x, y in ((84, 120), (90, 128), (200, 10)))
TYPE, INVALID = StepAction(name="type"), StepAction()
ACTIONS = st.lists(
    st.tuples(st.sampled_from(["a", "b", ""]), st.sampled_from([CLICK, NEAR, FAR, TYPE, INVALID])), max_size=6
)


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


def rollout(screens: str, *actions: StepAction) -> dict:
    """Return the fields of a rollout that took one action on each screen."""
    return {"steps": len(actions), "step_entropies": [0.1] * len(actions), "screens": [*screens], "actions": [*actions]}


def see_demonstration(agent: Groups) -> None:
    """Show the agent how the task is solved."""
    shown = {"purpose": "demonstration", "order_id": "demo-0", "trajectory_id": "shown"}
    agent.see(0, 1.0, **shown | rollout("ab", CLICK, TYPE))


@pytest.mark.parametrize(
    ("reward", "fields", "mixed"),
    [
        (1.0, rollout("ab", CLICK, TYPE), 0.7 + 0.05 + 0.1 + 0.15),
        (1.0, rollout("cd", FAR, INVALID), 0.7 + 0.025 + 0.1 + 0.15),
        (0.0, rollout("ab", NEAR, CLICK), 0.05 + 0.05 + 0.075),
        (0.0, rollout("a", FAR), 0.05 + 0.1),
        (0.0, rollout("c", CLICK), 0.05),
        (0.0, rollout("b", TYPE), 0.05 + 0.1 + 0.15),
        (0.0, rollout("ab", CLICK, INVALID), 0.025 + 0.05 + 0.075),
        (0.0, rollout("a", INVALID), 0.0),
        (0.5, rollout("a", INVALID), 0.35),
        (0.0, rollout("ab", CLICK, INVALID) | {"guided": True, "recorded_steps": [0]}, 0.0),
        (0.0, rollout("a", CLICK, TYPE), 0.05),
        (1.0, {}, 1.0),
        (0.0, {}, 0.0),
    ],
)
def test_the_mixed_reward_is_that_of_the_table(reward, fields, mixed):
    agent = Groups({"recipe": "craft-gui"})
    see_demonstration(agent)
    agent.see(0, reward, 2, **fields)
    [members] = agent.state.groups.values()
    assert agent.rules.shape_rewards(agent.state.memories, members, [reward]) == pytest.approx([mixed])


def test_failures_of_a_group_are_ranked_by_what_a_success_did():
    """All fail, and the demonstration says which failed later."""
    agent = Groups({"recipe": "craft-gui"})
    see_demonstration(agent)
    agent.see(0, 0.0, 3, **rollout("ab", NEAR, CLICK))
    agent.see(1, 0.0, 3, **rollout("a", FAR))
    group = agent.see(2, 0.0, 3, **rollout("a", INVALID))
    first, second, third = (member.advantage for member in group.members)
    assert first > second > third
    assert [member.reward for member in group.members] == [0.0, 0.0, 0.0]
    unshown = Groups({"recipe": "craft-gui"})
    assert unshown.see_all(0.0, 0.0, 0.0, 0.0, **rollout("a", CLICK)) is None


def test_successes_of_another_task_are_no_reference():
    agent = Groups({"recipe": "craft-gui"})
    see_demonstration(agent)
    agent.see(0, 0.0, 2, task_id="simulated/grid#1", **rollout("a", CLICK))
    [members] = agent.state.groups.values()
    assert agent.rules.shape_rewards(agent.state.memories, members, [0.0]) == pytest.approx([0.05])


def test_only_the_newest_screens_and_actions_of_successes_are_remembered(monkeypatch):
    own = Own(rules.Settings(), rules.References())
    clicks = [StepAction(name="click", x=x, y=0) for x in range(6)]
    monkeypatch.setattr(rules, "MOST_SCREENS", 4)
    rules.remember_successes(own, events.trajectory(screens=[*"xyz"], actions=clicks[:3], reward=1.0))
    assert len(own.memory.actions) == 3
    monkeypatch.setattr(rules, "MOST_SCREENS", 2)
    for screens, actions in (("abc", clicks[:3]), ("bbbbb", clicks[:5]), ("dd", [INVALID, clicks[5]])):
        rules.remember_successes(own, events.trajectory(screens=[*screens], actions=actions, reward=1.0))
    rules.remember_successes(own, events.trajectory(screens=["e"], actions=clicks[:1], reward=0.5))
    assert list(own.memory.actions) == [rules.reference_key("simulated/box#1", screen) for screen in "bd"]
    assert list(own.memory.actions.values()) == [clicks[1:5], clicks[5:]]


@given(ACTIONS, ACTIONS)
def test_a_mixed_reward_is_a_share_and_a_failure_is_below_every_success(shown, taken):
    own = Own(rules.Settings(), rules.References())
    success = events.trajectory(screens=[screen for screen, _ in shown], actions=[one for _, one in shown], reward=1.0)
    rules.remember_successes(own, success)
    taken_on = {"screens": [screen for screen, _ in taken], "actions": [one for _, one in taken]}
    failure = Finish(0, "t", 0.0, len(taken), [], 0, 0, task_id=success.task_id, **taken_on)
    won = msgspec.structs.replace(failure, reward=1.0)
    mixed = rules.mixed_rewards(own, [failure, won], [0.0, 1.0])
    assert 0.0 <= mixed[0] <= 0.3 + 1e-9 < 0.95 - 1e-9 <= mixed[1] <= 1.0 + 1e-9


def test_equal_failures_of_a_circle_have_different_advantages():
    groups = groups_in(played(recipe_config("craft-gui")))
    failed = [{one.advantage for one in group.members if one.reward == 0.0} for group in groups]
    assert any(len(advantages) > 1 for advantages in failed)
