import msgspec
import pytest

from dart_streams.config import parse
from dart_streams.curation import groups
from dart_streams.curation.order_tracker import Limits
from dart_streams.curation.recipes import bind_rules
from dart_streams.curation.reducer import InputRecord
from tests import events

LIMITS = Limits(attempts=2, horizon=256)


class Groups:
    """The groups agent with an offset that counts by itself."""

    def __init__(self, tables=None, **curation):
        config = parse({"curation": curation} | (tables or {}))
        self.settings, self.rules = config.curation, bind_rules(config)
        self.state = groups.GroupsState()
        self.offset = 0

    def see(self, sample, reward, size=4, number=0, attempt=0, outcome=None, **fields):
        """Let a rollout finish; return the curated group if that made one."""
        known = {
            "trajectory_id": f"t{number}-{sample}-{attempt}",
            "group_id": f"g{number:06d}",
            "group_size": size,
            "attempt": attempt,
            "order_id": f"g{number:06d}/{sample}/{attempt}",
            "task_id": "simulated/grid#0",
            "outcome": outcome or ("success" if reward == 1.0 else "failure"),
            "reward": reward,
            "steps": 2,
            "step_entropies": [0.1, 0.2],
        }
        trajectory = events.trajectory(**known | fields)
        record = InputRecord("trajectories", 0, self.offset, trajectory)
        self.offset += 1
        self.state, decisions = groups.apply(self.state, record, self.settings, LIMITS, self.rules)
        assert len(decisions) <= 1
        return decisions[0].event if decisions else None

    def see_all(self, *rewards, number=0, **fields):
        """Let a whole group finish; return what it became."""
        made = None
        for sample, reward in enumerate(rewards):
            assert made is None
            made = self.see(sample, reward, len(rewards), number, **fields)
        return made


def test_members_come_by_their_samples_and_a_given_up_order_is_not_awaited():
    agent = Groups()
    for sample in (3, 1, 0):
        agent.see(sample, float(sample == 0))
    group = agent.see(2, 0.0)
    assert [member.trajectory_id for member in group.members] == ["t0-0-0", "t0-1-0", "t0-2-0", "t0-3-0"]
    agent = Groups()
    agent.see(0, None, 3, outcome="env_error")
    agent.see(1, 1.0, 3)
    agent.see(2, 0.0, 3)
    group = agent.see(0, None, 3, attempt=1, outcome="policy_error")
    assert [member.trajectory_id for member in group.members] == ["t0-1-0", "t0-2-0"]


def test_advantages_are_over_all_steps_with_an_unbiased_sigma():
    """The paper divides by D, the release by D - 1: 3.0 and -0.3333 would be the paper's."""
    agent = Groups()
    for sample in range(2):
        agent.see(sample, 1.0, 8, steps=10, step_entropies=[0.5] * 10)
    for sample in range(2, 8):
        group = agent.see(sample, 0.0, 8, steps=30, step_entropies=[0.5] * 30)
    assert group.mean == pytest.approx(0.1)
    assert group.std == pytest.approx(0.300753, abs=1e-6)
    assert group.members[0].advantage == pytest.approx(2.9925, abs=1e-4)
    assert group.members[7].advantage == pytest.approx(-0.3325, abs=1e-4)


@pytest.mark.parametrize("reward", [1.0, 0.0, 0.5])
def test_a_group_of_equal_rewards_is_dropped_and_counted(reward):
    agent = Groups()
    assert agent.see_all(*[reward] * 4) is None
    assert agent.state.counts.equal == 1


def test_an_all_failed_group_takes_one_success_from_the_pool():
    agent = Groups()
    agent.see(0, 1.0, purpose="demonstration", order_id="demo-0", trajectory_id="shown", steps=5, step_entropies=[])
    group = agent.see_all(0.0, 0.0, 0.0, 0.0)
    assert len(group.members) == 4
    [taken] = [member for member in group.members if member.source == "pool"]
    assert (taken.trajectory_id, taken.reward, taken.selected) == ("shown", 1.0, [0, 1, 2, 3, 4])
    assert (taken.version_min, taken.version_max) == (None, None)
    assert taken.advantage > 0 > group.members[0].advantage
    assert agent.state.counts.injected == 1


def test_the_pool_is_for_all_failed_groups_and_only_where_it_is_enabled():
    agent = Groups(pool={"enabled": False})
    agent.see(0, 1.0, purpose="demonstration", order_id="demo-0", trajectory_id="shown")
    assert agent.see_all(0.0, 0.0, 0.0, 0.0) is None
    agent = Groups()
    agent.see_all(1.0, 0.0, number=0)
    group = agent.see_all(1.0, 0.0, 0.0, 0.0, number=1)
    assert {member.source for member in group.members} == {"online"}


def test_online_successes_feed_the_pool_of_their_own_task_only():
    agent = Groups()
    agent.see_all(1.0, 0.0, number=0)
    assert agent.see_all(0.0, 0.0, 0.0, number=1, task_id="simulated/grid#1") is None
    assert agent.see_all(0.0, number=3) is None, "a failed probe takes nothing from it"
    assert agent.state.counts.injected == 0
    assert agent.see_all(0.0, 0.0, 0.0, number=2) is not None


def injected(as_online, purpose="train", entropies=(0.1, 0.5)):
    """Return a group of failures with entropies 0.3 and 0.4, and its member from the pool."""
    agent = Groups({"recipe": ["dart"], "recipes": {"dart": {"as_online": as_online}}})
    agent.see(0, 1.0, 1, purpose=purpose, steps=len(entropies) or 2, step_entropies=list(entropies))
    group = agent.see_all(0.0, 0.0, 0.0, 0.0, number=1, step_entropies=[0.3, 0.4])
    return group, next(member for member in group.members if member.source == "pool")


def test_an_own_stored_success_is_selected_and_weighed_as_online():
    group, member = injected(as_online=True)
    assert (member.selected, member.as_online) == ([1], True), "the quantile of all eight steps is 0.3"
    assert [other.selected for other in group.members if other is not member] == [[0, 1]] * 3
    unsure, _ = injected(as_online=True, entropies=(0.9,) * 6)
    assert [other.selected for other in unsure.members if other.source == "online"] == [[1]] * 3


@pytest.mark.parametrize(
    ("as_online", "purpose", "entropies", "flag"),
    [(False, "train", (0.1, 0.5), False), (True, "demonstration", (0.1, 0.5), False), (True, "train", (), True)],
)
def test_what_has_no_entropies_of_the_policy_keeps_all_steps(as_online, purpose, entropies, flag):
    _, member = injected(as_online, purpose, entropies)
    assert (member.selected, member.as_online) == ([0, 1], flag)


def test_evaluations_and_a_group_without_any_reward_make_no_group():
    agent = Groups()
    for attempt in range(2):
        assert agent.see(0, None, 1, attempt=attempt, outcome="env_error") is None
    assert agent.state.counts.empty == 1
    assert not agent.state.groups
    agent = Groups()
    assert agent.see(0, 1.0, 1, purpose="eval", order_id="eval-1") is None
    assert agent.state == groups.GroupsState()


def test_a_second_finish_is_ignored_also_after_its_group_has_closed():
    agent = Groups()
    agent.see(0, 1.0, 2)
    assert agent.see(0, 0.0, 2, trajectory_id="second") is None
    group = agent.see(1, 0.0, 2)
    assert [member.trajectory_id for member in group.members] == ["t0-0-0", "t0-1-0"]
    assert agent.see(0, 0.0, 2, trajectory_id="third") is None
    assert agent.see(1, 1.0, 2, trajectory_id="fourth") is None
    assert agent.state.counts.repeated == 3
    assert not agent.state.groups


@pytest.mark.parametrize(
    ("count", "fields"),
    [
        ("stale", {"version_min": 1, "version_max": 2}),
        ("untrainable", {"untrainable": "3 of 3 answers have no tokens", "version_min": None, "version_max": None}),
    ],
)
def test_what_is_too_old_or_has_no_tokens_is_no_member_and_counted(count, fields):
    agent = Groups(max_staleness=2)
    agent.state.newest_version = 2
    agent.see(0, 1.0, **fields)
    agent.see(1, 1.0, version_min=2, version_max=2)
    agent.see(2, 0.0, version_min=4, version_max=4)
    group = agent.see(3, 0.0, version_min=3, version_max=4)
    assert [member.trajectory_id for member in group.members] == ["t0-1-0", "t0-2-0", "t0-3-0"]
    assert getattr(agent.state.counts, count) == 1


@pytest.mark.parametrize(
    ("steps", "entropies", "selected"),
    [
        ((5, 5), ([0.1, 0.2, 0.3, 0.4, 0.5], [0.6, 0.7, 0.8, 0.9, 1.0]), [[2, 3, 4], [0, 1, 2, 3, 4]]),
        ((3, 2), ([], [0.1, 0.9]), [[0, 1, 2], [1]]),
    ],
)
def test_the_four_fifths_of_highest_entropy_of_the_group_are_selected(steps, entropies, selected):
    """A member without an entropy a step keeps all its steps."""
    agent = Groups()
    agent.see(0, 1.0, 2, steps=steps[0], step_entropies=entropies[0])
    group = agent.see(1, 0.0, 2, steps=steps[1], step_entropies=entropies[1])
    assert [member.selected for member in group.members] == selected


def test_the_steps_left_out_still_count_in_the_statistics():
    selected, everything = (Groups(entropy={"keep": keep}) for keep in (0.8, 1.0))
    made = []
    for agent in (selected, everything):
        agent.see(0, 1.0, 2, steps=5, step_entropies=[0.1, 0.2, 0.3, 0.4, 0.5])
        made.append(agent.see(1, 0.0, 2, steps=5, step_entropies=[0.6, 0.7, 0.8, 0.9, 1.0]))
    assert made[0].mean == made[1].mean
    assert made[0].std == made[1].std
    assert made[1].members[0].selected == [0, 1, 2, 3, 4]


def test_a_group_far_behind_the_newest_is_given_up():
    agent = Groups()
    agent.see(0, 1.0, 2, number=0)
    agent.see(0, 1.0, 2, number=LIMITS.horizon)
    assert agent.state.counts.abandoned == 1
    assert agent.see(1, 0.0, 2, number=0) is None
    assert list(agent.state.groups) == [LIMITS.horizon]


def test_without_credit_of_steps_the_event_is_as_it_was():
    agent = Groups()
    agent.see(0, 1.0, 2)
    group = agent.see(1, 0.0, 2)
    assert "step_advantages" not in msgspec.to_builtins(group)["members"][0]


def test_a_success_without_tokens_can_still_be_imitated_from_the_pool():
    agent = Groups()
    assert agent.see_all(1.0, 0.0, 0.0, 0.0, untrainable="4 of 4 answers have no tokens") is None
    assert (agent.state.counts.untrainable, agent.state.counts.empty) == (4, 1)
    group = agent.see_all(0.0, 0.0, 0.0, 0.0, number=1)
    [taken] = [member for member in group.members if member.source == "pool"]
    assert (taken.trajectory_id, taken.version_min) == ("t0-0-0", None)


def test_an_oversized_group_is_dropped_and_counted():
    """A stranger's episodes may be longer than any task's."""
    agent = Groups()
    long = {"steps": 100_000, "step_entropies": []}
    assert agent.see_all(1.0, *[0.0] * 15, **long) is None
    assert agent.state.counts.too_large == 1
    assert agent.see_all(1.0, 0.0, number=1) is not None
    coupled = Groups(dispatch={"mode": "coupled"})
    assert coupled.see_all(1.0, *[0.0] * 15, **long).members == []


def test_recorded_steps_are_neither_counted_nor_selected_by_any_rule():
    """Of entropies 0.1 to 0.6, without those of recorded steps, the 0.5 quantile is 0.45."""
    agent = Groups(entropy={"keep": 0.5})
    agent.see(0, 1.0, 2, steps=4, step_entropies=[0.9, 0.1, 0.8, 0.5], guided=True, recorded_steps=[0, 2])
    group = agent.see(1, 0.0, 2, steps=2, step_entropies=[0.4, 0.6], guided=True)
    assert [member.selected for member in group.members] == [[3], [1]]
    assert group.mean == 0.5, "two steps each"
    assert group.members[0].advantage == pytest.approx(0.5 / (1 / 3) ** 0.5, abs=1e-5)
    agent = Groups()
    agent.rules = agent.rules._replace(select_steps=lambda memories, rollouts: [[0, 1] for _ in rollouts])
    agent.see(0, 1.0, 2, guided=True, recorded_steps=[0])
    assert [member.selected for member in agent.see(1, 0.0, 2).members] == [[1], [0, 1]]


def test_a_guided_success_is_not_pooled_and_no_member_without_own_steps():
    agent = Groups()
    assert agent.see_all(1.0, 0.0, number=2, untrainable="every action is a recorded one", guided=True) is None
    assert (agent.state.counts.untrainable, agent.state.pools) == (2, {})
    agent.see_all(1.0, 0.0, guided=True, recorded_steps=[0])
    agent.see_all(1.0, 0.0, number=1)
    assert [stored.trajectory_id for stored in agent.state.pools["simulated/grid#0"]] == ["t1-0-0"]


def test_a_version_far_ahead_of_all_others_makes_nothing_stale():
    """One record of a foreign program ended training without a word; a second one of that version is believed."""
    agent = Groups(max_staleness=2)
    agent.see(0, 1.0, size=2, version_min=1, version_max=1)
    agent.see(1, 1.0, size=2, version_min=3, version_max=4)
    assert (agent.state.newest_version, agent.state.counts.untrainable) == (1, 1)
    agent.see(0, 1.0, size=2, number=1, version_min=2, version_max=2)
    assert len(agent.see(1, 0.0, size=2, number=1, version_min=1, version_max=2).members) == 2
    for sample in range(3):
        agent.see(sample, 1.0, size=3, number=2, version_min=9000 + sample, version_max=9000 + sample)
    assert (agent.state.newest_version, agent.state.counts.untrainable) == (9002, 2)


def test_a_rollout_without_steps_gives_no_signal_and_has_no_advantage():
    """Its advantage was -1,000,000, and its group took a place in a step without a gradient."""
    none = {"steps": 0, "step_entropies": []}
    agent = Groups()
    agent.see(0, 1.0, size=3)
    agent.see(1, 0.0, size=3, **none)
    assert agent.see(2, 1.0, size=3) is None and agent.state.counts.equal == 1
    agent.see(0, 1.0, size=3, number=1)
    agent.see(1, 0.0, size=3, number=1, **none)
    group = agent.see(2, 0.5, size=3, number=1, outcome="failure")
    assert [round(member.advantage, 2) for member in group.members] == [0.87, 0.0, -0.87]
