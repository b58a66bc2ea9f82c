"""UI-S1: credit of steps by hand, and in a circle."""

import statistics

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_recipes.ui_s1 import rules
from plugins.recipes.tests.agents import groups_in, orders_in, played, recipe_config
from tests.unit.curation.test_dispatch import Dispatch
from tests.unit.curation.test_groups import Groups
from topics.rollout_budgets import RolloutBudget
from topics.rollout_orders import Guide
from topics.task_difficulty import Cause

MEMBERS = st.lists(st.tuples(st.sampled_from([0.0, 0.25, 1.0]), st.integers(0, 30)), min_size=1, max_size=16)


def advantages_of(rewards: list[float], steps: list[int], discount: float) -> list[list[float]]:
    """Return the advantages of the steps of trajectories without recorded steps."""
    own = [list(range(count)) for count in steps]
    returns = [rules.future_returns(*member, discount) for member in zip(rewards, steps, own, strict=True)]
    return rules.compare_steps(returns, own)


def test_a_steps_return_is_credited_against_the_groups_same_steps():
    """With discount 0.5, a success in 1 step is worth 1 at step 0, one in 3 steps 0.25, and a failure nothing."""
    agent = Groups({"recipe": "ui-s1"})
    agent.see(0, 1.0, size=3, steps=1, step_entropies=[0.1])
    agent.see(1, 1.0, size=3, steps=3, step_entropies=[0.1] * 3)
    group = agent.see(2, 0.0, size=3, steps=2)
    mean, std = 1.25 / 3, statistics.stdev([1.0, 0.25, 0.0])
    short, long, failure = group.members
    assert short.step_advantages == pytest.approx([short.advantage + (1.0 - mean) / std], abs=1e-4)
    assert long.step_advantages[0] == pytest.approx(long.advantage + (0.25 - mean) / std, abs=1e-4)
    assert long.step_advantages[1] == pytest.approx(long.advantage + 0.5**0.5, abs=1e-4)
    assert long.step_advantages[2] == long.advantage
    assert failure.step_advantages[1] == pytest.approx(failure.advantage - 0.5**0.5, abs=1e-4)


def test_only_selected_steps_have_an_advantage_of_their_own():
    agent = Groups({"recipe": "ui-s1"}, entropy={"keep": 0.8}, pool={"enabled": True})
    agent.see(0, 1.0, 2, steps=5, step_entropies=[0.1, 0.2, 0.3, 0.4, 0.5])
    group = agent.see(1, 0.0, 2, steps=5, step_entropies=[0.6, 0.7, 0.8, 0.9, 1.0])
    first, second = group.members
    assert (first.selected, len(first.step_advantages), len(second.step_advantages)) == ([2, 3, 4], 3, 5)
    whole = advantages_of([1.0, 0.0], [5, 5], 0.5)[0]
    assert first.step_advantages == [first.advantage + whole[step] for step in first.selected]


def test_a_stored_success_is_credited_as_well():
    agent = Groups({"recipe": "ui-s1"}, entropy={"keep": 0.8}, pool={"enabled": True})
    agent.see(0, 1.0, purpose="demonstration", order_id="demo-0", trajectory_id="shown", steps=3, step_entropies=[])
    group = agent.see_all(0.0, 0.0)
    [taken] = [member for member in group.members if member.source == "pool"]
    assert len(taken.step_advantages) == 3


@pytest.mark.parametrize(
    ("weight", "lengths", "kept"), [(1.0, (2, 4), True), (1.0, (2, 2), False), (0.0, (2, 4), False)]
)
def test_equal_successes_have_a_signal_only_where_steps_are_credited(weight, lengths, kept):
    agent = Groups({"recipe": "ui-s1", "recipes": {"ui-s1": {"step_weight": weight}}})
    agent.see(0, 1.0, 2, steps=lengths[0], step_entropies=[0.1] * lengths[0])
    group = agent.see(1, 1.0, 2, steps=lengths[1], step_entropies=[0.1] * lengths[1])
    assert (group is not None) == kept


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.4, 1.0]), st.integers(0, 9)), min_size=1, max_size=8),
    st.floats(0.0, 1.0),
)
def test_step_advantages_are_one_a_step_and_sum_to_nothing_at_each_step(members, discount):
    rewards, steps = [reward for reward, _ in members], [n for _, n in members]
    credited = advantages_of(rewards, steps, discount)
    assert [len(own) for own in credited] == steps
    for step in range(max(steps)):
        assert sum(own[step] for own in credited if step < len(own)) == pytest.approx(0.0, abs=1e-6)
    if len(set(rewards)) == 1 and not (any(rewards) and discount != 1.0 and len(set(steps)) > 1):
        assert all(abs(gain) < 1e-6 for own in credited for gain in own)


@given(MEMBERS, st.sampled_from([0.5, 0.9, 1.0]))
def test_single_step_advantages_compare_trajectories_at_the_same_step(members, discount):
    """UI-S1 (arXiv 2509.11543), with the whole reward at the last step: R_t = discount ** (T - 1 - t) r."""
    rewards, steps = [reward for reward, _ in members], [count for _, count in members]
    found = advantages_of(rewards, steps, discount)
    assert [len(own) for own in found] == steps
    for step in range(max(steps)):
        at_step = [index for index, count in enumerate(steps) if count > step]
        returns = [rewards[index] * discount ** (steps[index] - 1 - step) for index in at_step]
        sigma = statistics.stdev(returns) if len(returns) > 1 else 0.0
        mean = statistics.fmean(returns)
        for index, value in zip(at_step, returns, strict=True):
            assert found[index][step] == pytest.approx((value - mean) / (sigma + 1e-6), rel=1e-5, abs=1e-5)


def test_steps_of_a_trajectory_are_credited_apart_in_a_circle():
    members = [member for group in groups_in(played(recipe_config("ui-s1"))) for member in group.members]
    assert all(len(member.step_advantages) == len(member.selected) for member in members)
    assert any(len(set(member.step_advantages)) > 1 for member in members)


def test_a_patch_is_not_credited_and_cuts_the_returns_before_it():
    """A success in 4 steps with step 1 patched, a success in 3, and a failure that is patched and leaves at step 1.

    Own steps are 3, 3 and 1 with rewards 1, 1 and 0: mean 6 / 7, deviation 1 / sqrt(7).
    Returns are 0, -, 0.5, 1 and 0.25, 0.5, 1 and -, 0. Of two values each is 1 / sqrt(2) deviations from the mean.
    """
    agent = Groups({"recipe": "ui-s1"})
    entropies = [0.1] * 4
    agent.see(0, 1.0, 3, steps=4, step_entropies=entropies, guided=True, recorded_steps=[1])
    agent.see(1, 1.0, 3, steps=3, step_entropies=entropies[:3], guided=True)
    group = agent.see(2, 0.0, 3, steps=2, step_entropies=entropies[:2], guided=True, recorded_steps=[0])
    assert (group.mean, group.std) == (pytest.approx(6 / 7), pytest.approx(7**-0.5))
    patched, alone, failure = group.members
    assert [member.selected for member in group.members] == [[0, 2, 3], [0, 1, 2], [1]]
    whole, away = 7**-0.5, 2**-0.5
    assert patched.advantage == pytest.approx(whole, abs=1e-4)
    assert patched.step_advantages == pytest.approx([whole - away, whole - away, whole], abs=1e-4)
    assert alone.step_advantages == pytest.approx([whole + away] * 3, abs=1e-4)
    assert failure.step_advantages == pytest.approx([-6 * whole - away], abs=1e-4)


def test_equal_successes_with_other_patches_have_a_signal():
    def kept(recorded):
        agent = Groups({"recipe": "ui-s1"})
        agent.see(0, 1.0, 2, steps=3, step_entropies=[], guided=True, recorded_steps=recorded[0])
        return agent.see(1, 1.0, 2, steps=3, step_entropies=[], guided=True, recorded_steps=recorded[1]) is not None

    assert kept([[], [1]])
    assert not kept([[1], [1]])
    assert not kept([[0], []]), "the two steps after the patch are worth the same"


def demonstrated(agent: Dispatch, task_id: str, outcome: str = "success") -> None:
    """Let dispatch read the finish of a demonstration."""
    name = f"demonstration-{task_id}"
    cause = Cause(trajectory_id=f"shown-{task_id}", order_id=name, group_id=name, outcome=outcome, attempt=0)
    agent.apply(RolloutBudget(task_id=task_id, rollouts=8, max_steps=10, reason="", cause=cause))


def test_orders_of_a_demonstrated_task_have_its_recording_and_patches():
    agent = Dispatch(tasks=2, recipe="ui-s1", recipes={"ui-s1": {"patches": 2, "bound": 7}})
    demonstrated(agent, "simulated/grid#0")
    demonstrated(agent, "simulated/grid#1", "failure")
    by_task = {order.task_id: order.guide for order in agent.weights()}
    assert by_task == {
        "simulated/grid#0": Guide(trajectory_id="shown-simulated/grid#0", mode="patches", patches=2, bound=7),
        "simulated/grid#1": None,
    }


def test_the_first_success_without_a_guide_becomes_the_recording():
    agent = Dispatch(tasks=1, recipe="ui-s1")
    first, second, *_ = agent.weights()
    agent.finish(first)
    agent.finish(second, "success")
    agent.play(12, lambda order: True)
    guides = {order.guide for order in agent.orders} - {None}
    assert {guide.trajectory_id for guide in guides} == {f"t-{second.order_id}"}
    assert agent.orders[-1].guide is not None


@pytest.mark.parametrize(("guided", "share"), [(0.0, 0.0), (0.5, 0.5), (1.0, 1.0)])
def test_a_share_of_the_groups_is_semi_online(guided, share):
    agent = Dispatch(tasks=1, recipe="ui-s1", recipes={"ui-s1": {"guided": guided}}, trainer={"groups_per_step": 999})
    demonstrated(agent, "simulated/grid#0")
    agent.play(400, lambda order: False)
    by_group = {order.group_id: order.guide is not None for order in agent.orders}
    assert statistics.fmean(by_group.values()) == pytest.approx(share, abs=0.08)
    assert all(by_group[order.group_id] == (order.guide is not None) for order in agent.orders)


def test_patched_steps_are_never_selected_in_a_circle():
    circle = played(recipe_config("ui-s1"))
    assert any(order.guide for order in orders_in(circle))
    recorded = {event.event.trajectory_id: event.event.recorded_steps for event in circle.logs["trajectories"]}
    members = [member for group in groups_in(circle) for member in group.members]
    assert any(recorded[member.trajectory_id] for member in members)
    assert not any(set(member.selected) & set(recorded[member.trajectory_id]) for member in members)
    assert b"guide" not in msgspec.json.encode(orders_in(played(recipe_config("dart"), rounds=50)))
