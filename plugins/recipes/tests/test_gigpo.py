"""GiGPO: credit of steps on equal screens by hand, in a recorded run, and in a circle."""

import statistics
from collections import defaultdict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_recipes.gigpo import rules
from plugins.recipes.tests.agents import groups_in, played, recipe_config, see
from tests.integration.recorded_run import played as recorded
from tests.integration.recorded_run import settings
from tests.unit.curation.test_groups import Groups

HALF = {"recipe": "gigpo", "recipes": {"gigpo": {"discount": 0.5}}}
MEMBERS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.25, 1.0]), st.lists(st.sampled_from(["a", "b", "c", ""]), max_size=6)),
    min_size=1,
    max_size=8,
)


def test_steps_on_one_screen_are_compared_by_their_discounted_return():
    """Returns with discount 0.5: on a 0.5, 0.25 and 0, so 1, 0 and -1; on b 1 and 0.5, and on c 1 and 0."""
    agent = Groups(HALF)
    see(agent, 0, 1.0, "ab")
    see(agent, 1, 1.0, "abc")
    short, long, failure = see(agent, 2, 0.0, "ac").members
    sigma = statistics.stdev([1.0, 1.0, 0.0])
    assert [short.advantage, long.advantage, failure.advantage] == pytest.approx(
        [(1 / 3) / sigma, (1 / 3) / sigma, (-2 / 3) / sigma], abs=1e-5
    )
    half = 0.5**0.5
    assert short.step_advantages == pytest.approx([short.advantage + 1.0, short.advantage + half], abs=1e-4)
    assert long.step_advantages == pytest.approx([long.advantage + gain for gain in (0.0, -half, half)], abs=1e-4)
    assert failure.step_advantages == pytest.approx([failure.advantage - 1.0, failure.advantage - half], abs=1e-4)


def test_without_the_deviation_only_the_mean_is_subtracted():
    agent = Groups({"recipe": "gigpo", "recipes": {"gigpo": {"discount": 0.5, "by_deviation": False}}})
    see(agent, 0, 1.0, "ab", size=2)
    won, lost = see(agent, 1, 0.0, "ab", size=2).members
    assert (won.advantage, lost.advantage) == (0.5, -0.5)
    assert (won.step_advantages, lost.step_advantages) == ([0.75, 1.0], [-0.75, -1.0])


def test_a_screen_that_a_trajectory_shows_again_is_compared_with_itself():
    """Returns 0.25, 0.5 and 1 on one screen, of mean 0.583: the later the step, the better."""
    [own] = rules.screen_advantages([["a", "a", "a"]], [[0.25, 0.5, 1.0]], by_deviation=False)
    assert own == pytest.approx([-1 / 3, -1 / 12, 5 / 12])


@pytest.mark.parametrize(
    ("weight", "screens", "kept"),
    [(1.0, ("ab", "abc"), True), (1.0, ("ab", "ba"), True), (1.0, ("ab", "cde"), False), (0.0, ("ab", "abc"), False)],
)
def test_equal_successes_teach_only_where_returns_on_a_screen_differ(weight, screens, kept):
    agent = Groups({"recipe": "gigpo", "recipes": {"gigpo": {"step_weight": weight}}})
    see(agent, 0, 1.0, screens[0], size=2)
    assert (see(agent, 1, 1.0, screens[1], size=2) is not None) == kept


def test_without_known_screens_a_steps_advantage_is_its_trajectorys():
    agent = Groups(HALF | {"curation": {"pool": {"enabled": True}}})
    agent.see(0, 1.0, purpose="demonstration", order_id="demo-0", trajectory_id="shown", steps=3, step_entropies=[])
    see(agent, 0, 0.0, "ab", size=2)
    [taken, online] = sorted(see(agent, 1, 0.0, "ab", size=2).members, key=lambda member: member.source, reverse=True)
    assert taken.step_advantages == [taken.advantage] * 3
    assert online.step_advantages == [online.advantage] * 2
    older = Groups(HALF)
    older.see(0, 1.0, size=2)
    for member in older.see(1, 0.0, size=2).members:
        assert member.step_advantages == [member.advantage] * 2


@given(MEMBERS, st.sampled_from([0.5, 0.95, 1.0]))
def test_advantages_on_a_screen_sum_to_nothing_and_follow_the_returns(members, discount):
    """GiGPO (arXiv 2505.10978): (R - mean) / std over the steps of an anchor state."""
    rewards, screens = [reward for reward, _ in members], [shown for _, shown in members]
    returns = rules.discounted_returns(rewards, [len(shown) for shown in screens], discount)
    found = rules.screen_advantages(screens, returns, by_deviation=True)
    by_screen = defaultdict(list)
    for shown, values, credited in zip(screens, returns, found, strict=True):
        for screen, value, advantage in zip(shown, values, credited, strict=True):
            if screen:
                by_screen[screen].append((value, advantage))
            else:
                assert advantage == 0.0
    for seen in by_screen.values():
        values = [value for value, _ in seen]
        mean, sigma = statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0
        assert [advantage for _, advantage in seen] == pytest.approx(
            [(value - mean) / (sigma + 1e-6) for value in values], rel=1e-5, abs=1e-5
        )


def test_steps_of_a_recorded_run_on_equal_screenshots_are_compared():
    """The anchor states are found again from the recorded screenshots' whole SHA-256."""
    config = msgspec.structs.replace(settings(step_ms=0), recipe=("gigpo",))
    logs = recorded(config, 60).circle.logs
    shown = {(seen.event.trajectory_id, seen.event.step): seen.event.screenshot for seen in logs["observations"]}
    lengths = {written.event.trajectory_id: written.event.steps for written in logs["trajectories"]}
    shared = better = 0
    for group in (written.event for written in logs["curated"]):
        on_screen = defaultdict(list)
        for member in group.members:
            for step, credited in zip(member.selected, member.step_advantages, strict=True):
                value = member.reward * 0.95 ** (lengths[member.trajectory_id] - 1 - step)
                on_screen[shown[member.trajectory_id, step].sha256].append((value, credited - member.advantage))
        for seen in on_screen.values():
            shared += len(seen) > 1
            for value, gain in seen:
                assert all(gain > less for other, less in seen if value > other)
                better += any(value > other for other, _ in seen)
    assert shared > 9 and better > 9


def test_steps_of_equal_screens_are_credited_apart_in_a_circle():
    members = [member for group in groups_in(played(recipe_config("gigpo"))) for member in group.members]
    assert all(len(member.step_advantages) == len(member.selected) for member in members)
    assert any(len(set(member.step_advantages)) > 1 for member in members)
