"""MobileRL: values of AdaGRPO by hand, and what happens in a circle."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_recipes.mobilerl import rules, training
from dart_streams.curation import advantages, task_scheduler
from dart_streams.curation.hooks import Own, TaskFinish, Turn
from dart_streams.curation.task_scheduler import TaskState
from plugins.recipes.tests.agents import groups_in, played, recipe_config
from tests import events
from tests.unit.curation.test_dispatch import Dispatch
from tests.unit.curation.test_groups import Groups
from trainer.hooks import StepStart, bind_training

MEMBERS = st.lists(st.tuples(st.sampled_from([0.0, 0.25, 1.0]), st.integers(0, 30)), min_size=1, max_size=16)


def test_a_shorter_success_is_worth_more_where_the_length_counts():
    """Of successes in 2 and 4 steps with alpha 0.5 the second is worth 1 - 0.5 x (4 - 2) / 4 = 0.75."""
    agent = Groups({"recipe": "mobilerl"})
    agent.see(0, 1.0, size=3, steps=2)
    agent.see(1, 1.0, size=3, steps=4, step_entropies=[0.1] * 4)
    group = agent.see(2, 0.0, size=3, steps=2)
    mean, std = advantages.reward_statistics([1.0, 0.75, 0.0], [2, 4, 2])
    assert [member.advantage for member in group.members] == pytest.approx(
        [(worth - mean) / (std + 1e-6) for worth in (1.0, 0.75, 0.0)]
    )
    assert [member.reward for member in group.members] == [1.0, 1.0, 0.0]
    assert (group.mean, group.std) == (mean, std)


@pytest.mark.parametrize(("alpha", "kept"), [(0.0, False), (0.5, True)])
def test_successes_of_different_length_teach_only_where_the_length_counts(alpha, kept):
    agent = Groups({"recipe": "mobilerl", "recipes": {"mobilerl": {"shortest_path": alpha}}})
    agent.see(0, 1.0, size=2, steps=2)
    group = agent.see(1, 1.0, size=2, steps=4, step_entropies=[0.1] * 4)
    assert (group is not None) == kept


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.4, 1.0]), st.integers(1, 30)), min_size=1, max_size=9),
    st.floats(0.0, 1.0),
)
def test_the_length_changes_successes_only_and_never_below_nothing(members, alpha):
    rewards, steps = [reward for reward, _ in members], [n for _, n in members]
    worth = rules.shortest_path(rewards, steps, alpha)
    for reward, n, value in zip(rewards, steps, worth, strict=True):
        assert value == reward if reward < 1.0 else 0.0 <= value <= reward
        if reward == 1.0 and n == min(m for r, m in members if r == 1.0):
            assert value == reward


@given(MEMBERS, st.sampled_from([0.0, 0.5, 1.0]))
def test_longer_successes_lose_reward_by_their_excess(members, alpha):
    """AdaGRPO (arXiv 2509.18119): r (1 - alpha (T - T_min) / T) for successes of T steps."""
    rewards, steps = [reward for reward, _ in members], [count for _, count in members]
    lengths = [count for reward, count in members if reward == 1.0]
    expected = []
    for reward, count in members:
        excess = (count - min(lengths)) / count if reward == 1.0 and count else 0.0
        expected.append(reward * (1 - alpha * excess))
    assert rules.shortest_path(rewards, steps, alpha) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("failed", "weight"),
    [(0, 1.0), (1, 1.0), (2, math.exp(-2)), (3, math.exp(-3)), (4, math.exp(-4)), (5, 0.0), (50, 0.0)],
)
def test_the_weight_falls_with_failed_groups_until_the_task_is_left_out(failed, weight):
    assert rules.failure_weight(failed, patience=2, cooldown=3) == weight


def test_a_group_counts_as_failed_at_its_end_and_a_success_begins_anew():
    own = Own(rules.Settings(), rules.FailedGroups())
    turn = Turn("a", TaskState(), 0)

    def finish(group, *successes):
        for index, success in enumerate(successes):
            rules.count_failures(own, TaskFinish("a", group, success, index == len(successes) - 1))

    finish(0, False, False)
    finish(1, False, False)
    assert (own.memory.failed, rules.turn_weight(own, turn)) == ({"a": 2}, math.exp(-2))
    finish(2, True, False)
    assert (own.memory.failed, rules.turn_weight(own, turn)) == ({"a": 0}, 1.0)


def test_longer_successes_are_paid_less_in_a_circle():
    circle = played(recipe_config("mobilerl"))
    lengths = {written.event.trajectory_id: written.event.steps for written in circle.logs["trajectories"]}
    compared = 0
    for group in groups_in(circle):
        won = [m for m in group.members if m.reward == 1.0 and m.source == "online"]
        pairs = [(a, b) for a in won for b in won if lengths[a.trajectory_id] < lengths[b.trajectory_id]]
        assert all(shorter.advantage > longer.advantage for shorter, longer in pairs)
        compared += len(pairs)
    assert compared > 0


def test_a_task_that_keeps_failing_gets_no_more_groups(monkeypatch):
    monkeypatch.setattr(task_scheduler, "PROBE_EVERY", 1000)
    agent = Dispatch(tasks=4, recipe="mobilerl", trainer={"groups_per_step": 99})
    hopeless = "simulated/grid#0"
    groups = agent.play(400, lambda order: order.task_id != hopeless and order.sample % 2)
    assert agent.state.memories["mobilerl"].failed[hopeless] == groups.count(hopeless) == 5
    assert hopeless not in groups[-100:]


def test_groups_go_on_although_every_task_is_left_out():
    agent = Dispatch(tasks=3, recipe="mobilerl", trainer={"groups_per_step": 99})
    assert len(agent.play(90, lambda order: False)) == 90
    assert min(agent.state.memories["mobilerl"].failed.values()) > 5


def batch_of(number, *advantages, source="online", reward=1.0):
    """Return a batch of one group whose members have these advantages."""
    members = [
        msgspec.structs.replace(
            events.member(f"t{number}-{index}", reward=reward, selected=[0], source=source), advantage=advantage
        )
        for index, advantage in enumerate(advantages)
    ]
    return [events.curated_group(f"g{number}", *members)]


def replaying(**settings):
    """Return the recipe's settings and an empty buffer."""
    return Own(rules.Settings(**settings), training.ReplayBuffer())


def step_on(own, batch, train_step=1):
    """Return the names of the trajectories that a step replays, and remember its batch."""
    made = training.replay(own, batch, StepStart(train_step, 7))
    training.fill_buffer(own, batch)
    return [member.trajectory_id for member in made]


def test_a_quarter_of_all_trajectories_is_replayed():
    """Steps of 8 owe 8/3 each: 2, 3 and 3 of the buffer make 8 of 32."""
    own = replaying(gamma=0.25, kappa=8)
    step_on(own, batch_of(0, *[1.0] * 8))
    own.memory.owed = 0.0
    counts = [len(step_on(own, batch_of(number, *[1.0] * 8))) for number in range(1, 31)]
    assert counts == [2, 3, 3] * 10
    assert sum(counts) / (sum(counts) + 8 * len(counts)) == 0.25


@given(st.sampled_from([0.1, 0.2, 0.25, 0.3, 0.5, 0.75]), st.lists(st.integers(1, 40), min_size=1, max_size=60))
def test_the_share_is_exact_up_to_a_fraction_of_one_trajectory(gamma, sizes):
    own = replaying(gamma=gamma, kappa=0)
    own.memory.members = batch_of(0, *[1.0] * 120)[0].members
    replayed, online = 0, 0
    for number, size in enumerate(sizes, start=1):
        made = step_on(own, batch_of(number, *[1.0] * size))
        replayed, online = replayed + len(made), online + size
        assert -1 < replayed - gamma / (1 - gamma) * online < 1e-6


def test_the_largest_advantages_are_replayed_and_equal_ones_in_turns():
    own = replaying(gamma=0.5, kappa=9)
    step_on(own, batch_of(0, 0.5, 2.0, 1.0, 1.0, 3.0))
    own.memory.owed = 0.0
    drawn = {tuple(step_on(own, batch_of(9, *[-1.0] * 3), number)) for number in range(2, 40)}
    assert drawn == {("t0-4", "t0-1", "t0-2"), ("t0-4", "t0-1", "t0-3")}
    assert len(own.memory.members) == 5


def test_the_best_successes_of_a_step_enter_and_the_oldest_leave():
    own = replaying(kappa=2, buffer=3)
    step_on(own, batch_of(0, 0.5, 2.0, 1.0))
    assert [member.trajectory_id for member in own.memory.members] == ["t0-1", "t0-2"]
    step_on(own, batch_of(1, 0.1, 0.2))
    assert [member.trajectory_id for member in own.memory.members] == ["t0-2", "t1-1", "t1-0"]
    for batch in (batch_of(2, 1.0, source="pool"), batch_of(3, 1.0, reward=0.5), batch_of(4, -1.0), batch_of(5, 0.0)):
        step_on(own, batch)
    assert [member.trajectory_id for member in own.memory.members] == ["t0-2", "t1-1", "t1-0"], "positive and its own"


def test_a_step_never_replays_its_own_batch():
    own = replaying(gamma=0.5, kappa=1)
    assert step_on(own, batch_of(0, *[1.0] * 8)) == []
    assert step_on(own, batch_of(1, *[1.0] * 8)) == ["t0-0"]
    assert own.memory.owed == 0.0


def test_a_buffer_from_a_checkpoint_replays_the_same():
    own = replaying(gamma=0.3, kappa=3)
    for number in range(5):
        step_on(own, batch_of(number, *[1.0 + number] * 7))
    again = msgspec.json.decode(msgspec.json.encode(own.memory), type=training.ReplayBuffer)
    batch, start = batch_of(9, *[1.0] * 7), StepStart(6, 7)
    assert training.replay(own._replace(memory=again), batch, start) == training.replay(own, batch, start) != []


@pytest.mark.parametrize("gamma", [0.25, 0.5])
def test_a_circle_replays_its_share_of_past_successes(gamma):
    config = recipe_config("mobilerl", recipes={"mobilerl": {"gamma": gamma}})
    bound, memories = bind_training(config), {}
    trained, size = played(config, rounds=2000).trainer.trained, config.trainer.groups_per_step
    past, online, replayed = set(), 0, 0
    for number, start in enumerate(range(0, len(trained), size), start=1):
        batch = trained[start : start + size]
        made = bound.replay(memories, batch, StepStart(number, 0))
        assert {member.trajectory_id for member in made} <= past
        bound.remember(memories, batch)
        past |= {member.trajectory_id for group in batch for member in group.members if member.reward == 1.0}
        if number > 20:  # the buffer has enough
            online += sum(bool(member.selected) for group in batch for member in group.members)
            replayed += len(made)
    assert abs(replayed - gamma * (online + replayed)) < 1
