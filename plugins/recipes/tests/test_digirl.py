"""DigiRL: its values, advantages and filters by hand, and in a circle."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_recipes.digirl import rules
from dart_streams.curation.hooks import Own
from dart_streams.curation.members import Finish
from plugins.recipes.tests.agents import groups_in, played, recipe_config, see
from tests import events
from tests.unit.curation.test_groups import Groups
from topics.curated import CuratedGroup

TASK = "simulated/box#1"


def remembering(*outcomes: tuple[str, float], **settings: float) -> Own:
    """Return a recipe that has seen these trajectories: the screen before each action, and the reward."""
    own = Own(rules.Settings(**settings), rules.Values())
    for screens, reward in outcomes:
        rules.remember_outcome(own, events.trajectory(screens=[*screens], reward=reward))
    return own


def member(screens: str, reward: float, task_id: str = TASK) -> Finish:
    """Return a finished rollout that took one action on each screen."""
    return Finish(0, "t", reward, len(screens), [], 0, 0, screens=[*screens], task_id=task_id)


@pytest.mark.parametrize(
    ("values", "reward", "discount", "advantages"),
    [
        ([0.2, 0.6, 0.8], 1.0, 0.5, [0.25 + 0.75 * 0.4, 0.5 + 0.5 * 0.2, 1.0]),
        ([0.2, 0.6, 0.1], 0.0, 0.5, [0.75 * 0.4, 0.5 * -0.5, 0.0]),
        ([0.2, 0.6, 0.8], 1.0, 1.0, [1.0, 1.0, 1.0]),
        ([0.2, 0.6, 0.8], 1.0, 0.0, [0.4, 0.2, 1.0]),
        ([0.3], 1.0, 0.5, [1.0]),
        ([], 1.0, 0.5, []),
    ],
)
def test_the_doubly_robust_advantage_is_that_of_the_formula(values, reward, discount, advantages):
    assert rules.robust_advantages(values, reward, discount) == pytest.approx(advantages)


def test_values_are_mean_outcomes_of_the_task_and_of_its_states():
    """Of four trajectories one succeeds. The state (a, b) was seen three times, once on the way to the success."""
    own = remembering(("ab", 1.0), ("ab", 0.0), ("ab", 0.0), ("c", 0.0))
    assert rules.task_value(own.memory, TASK) == 0.25
    assert rules.task_value(own.memory, "another") == 0.0
    values = rules.state_values(own.memory, TASK, ["a", "b"], prior=1.0)
    assert values == pytest.approx([(1 + 0.25) / 4, (1 + 0.25) / 4])
    assert rules.state_values(own.memory, TASK, ["z", "b"], prior=1.0) == [0.25, 0.25], (
        "a state is the last two screens"
    )
    assert rules.state_values(own.memory, TASK, ["a", "z"], prior=0.0) == pytest.approx([1 / 3, 0.25])
    assert rules.state_values(own.memory, "another", ["a"], prior=1.0) == [0.0]


def test_a_good_beginning_of_a_failure_is_imitated_and_its_mistake_is_not():
    """V is 1/3 on a, 2/3 on (a, b) and 0 on (b, x), without a prior: 0.25 and -0.333 before the last step."""
    seen = [("ab", 1.0), ("abx", 0.0), ("ac", 0.0), ("ab", 1.0), ("ac", 0.0), ("ac", 0.0)]
    own = remembering(*seen, prior=0.0, trajectories=1.0)
    failure = member("abx", 0.0)
    assert rules.step_advantages(own, failure) == pytest.approx([0.75 / 3, 0.5 * -2 / 3, 0.0])
    success, beside = member("ab", 1.0), member("ac", 0.0)
    assert rules.step_advantages(own, success) == pytest.approx([0.5 + 0.5 / 3, 1.0])
    assert rules.select_steps(own, [failure, success, beside]) == [[0], [0, 1], []]
    strict = own._replace(settings=rules.Settings(prior=0.0, trajectories=1.0, horizon=4))
    assert rules.select_steps(strict, [failure]) == [[]], "0.25 is not above 1/4"


def test_only_trajectories_above_the_expected_success_rate_are_trained_on():
    """An easy task at 3/4 and a hard one at 1/4: its success is worth 0.75, that of the easy one 0.25."""
    own = remembering(trajectories=0.25)
    for task_id, rewards in (("easy", (1.0, 1.0, 1.0, 0.0)), ("hard", (0.0, 0.0, 0.0, 1.0))):
        for reward in rewards:
            rules.remember_outcome(own, events.trajectory(task_id=task_id, reward=reward, screens=["a"]))
    assert own.memory.recent == [0.0, 0.0, 0.0, -0.75, 0.0, 0.0, 0.0, 0.75]
    both = [member("a", 1.0, "hard"), member("a", 1.0, "easy"), member("a", 0.0, "easy")]
    assert rules.select_steps(own, both) == [[0], [0], []]
    best = own._replace(settings=rules.Settings(trajectories=0.1))
    assert rules.select_steps(best, both) == [[0], [0], []], "the bound lies at 0.225"
    assert rules.select_steps(own._replace(settings=rules.Settings(trajectories=0.0)), both) == [[0], [], []]


def test_selected_steps_are_imitated_with_advantage_one():
    agent = Groups({"recipe": "digirl"})
    see(agent, 0, 1.0, "ab", size=3)
    see(agent, 1, 0.0, "ac", size=3)
    group = see(agent, 2, 1.0, "ab", size=3)
    assert [one.advantage for one in group.members] == [1.0, 1.0, 1.0]
    assert [one.selected for one in group.members] == [[0, 1], [], [0, 1]]
    assert [one.step_advantages for one in group.members] == [[], [], []]


def test_a_group_without_a_selected_step_is_not_trained_on():
    agent = Groups({"recipe": "digirl"})
    assert agent.see_all(0.0, 0.0, 0.0, 0.0) is None
    equal = agent.see_all(1.0, 1.0, 1.0, 1.0, number=1)
    assert equal is not None, "successes of a task that failed before"


def test_demonstrations_faults_and_guided_rollouts_do_not_count(monkeypatch):
    monkeypatch.setattr(rules, "MOST_STATES", 4)
    assert len(remembering(("abc", 1.0)).memory.states) == 3
    monkeypatch.setattr(rules, "MOST_STATES", 3)
    monkeypatch.setattr(rules, "RECENT", 2)
    own = remembering(("abc", 1.0), ("a", 0.0), ("de", 0.0))
    rules.remember_outcome(own, events.trajectory(purpose="demonstration", screens=["z"], reward=1.0))
    rules.remember_outcome(own, events.trajectory(outcome="env_error", screens=["z"], reward=None))
    rules.remember_outcome(own, events.trajectory(guided=True, screens=["z"], reward=1.0))
    assert own.memory.tasks[TASK] == rules.Tally(3, 1.0)
    steps = [(["a"], 0), (["d"], 0), (["d", "e"], 1)]
    assert list(own.memory.states) == [rules.state_key(TASK, screens, step) for screens, step in steps]
    assert own.memory.recent == [-0.5, -1 / 3]


@given(st.lists(st.floats(0.0, 1.0), max_size=8), st.sampled_from([0.0, 0.5, 1.0]), st.floats(0.0, 1.0))
def test_an_advantage_lies_between_the_outcome_and_the_gain_of_value(values, reward, discount):
    """DigiRL (arXiv 2406.11896), with H the last step: A = l^(H-h) r + (1 - l^(H-h)) (V(s_h+1) + r_h - V(s_h))."""
    found = rules.robust_advantages(values, reward, discount)
    assert len(found) == len(values)
    for step, advantage in enumerate(found[:-1]):
        gain = values[step + 1] - values[step]
        assert min(reward, gain) - 1e-9 <= advantage <= max(reward, gain) + 1e-9
    if found:
        assert found[-1] == reward


def circle_groups(**settings: float) -> list[CuratedGroup]:
    """Return the curated groups of a circle."""
    return groups_in(played(recipe_config("digirl", recipes={"digirl": settings})))


def test_a_circle_imitates_steps_of_failures_and_leaves_easy_tasks_out():
    every = circle_groups(trajectories=1.0)
    members = [one for group in every for one in group.members]
    assert {one.advantage for one in members} == {1.0}
    assert all(any(one.selected for one in group.members) for group in every)
    assert any(one.reward == 0.0 and one.selected for one in members)
    assert all(one.selected for one in members if one.reward == 1.0)
    few = circle_groups(trajectories=0.2)
    assert 0 < len(few) < len(every)
    assert all(len(one.selected) == 0 for group in few for one in group.members if one.reward == 0.0)
