"""The groups agent: trajectories in, groups that are worth training on out.

A group is ready when each of its own ``group_size`` orders has ended: with a reward, or given up after the last fault.
So a group of four is ready at four, and a lost rollout never holds up the other seven.

A ready group is trained on if its members' rewards differ. Before that, members older than the staleness bound are left
out, and if nobody succeeded, one stored success of the task takes the place of one failure.

In the coupled mode a group that teaches nothing is told of as well, without members: the trainer waits for the whole
batch, so it must hear that there is nothing more to come of it.
"""

from collections.abc import Sequence

import msgspec

from dart_streams import stateless_random as chance
from dart_streams.config import Curation
from dart_streams.curation import advantages, credit, entropy, pool
from dart_streams.curation.order_tracker import Limits, OrderTracker, group_name, place_of
from dart_streams.curation.pool import PooledSuccess
from dart_streams.curation.reducer import AgentProgress, Decision, InputRecord, cause_id
from dart_streams.curation.rewards import is_success, rewarded, shortest_path
from dart_streams.curation.staleness import is_stale
from topics import curated
from topics.curated import CuratedGroup, Member
from topics.trajectories import Trajectory

NAME = "groups"


class Finish(msgspec.Struct, frozen=True):
    """A rewarded rollout of an open group."""

    sample: int
    trajectory_id: str
    reward: float
    steps: int
    step_entropies: list[float]
    version_min: int | None
    version_max: int | None


class Counts(msgspec.Struct):
    """What became of groups and members so far."""

    curated: int = 0
    equal: int = 0
    empty: int = 0
    abandoned: int = 0
    injected: int = 0
    stale: int = 0
    repeated: int = 0


class GroupsState(msgspec.Struct):
    """Open groups, each task's pool, and the newest weight version that any trajectory has shown."""

    progress: AgentProgress = msgspec.field(default_factory=AgentProgress)
    book: OrderTracker = msgspec.field(default_factory=OrderTracker)
    newest_version: int = -1
    groups: dict[int, list[Finish]] = {}
    pools: dict[str, list[PooledSuccess]] = {}
    counts: Counts = msgspec.field(default_factory=Counts)


def apply(
    state: GroupsState, record: InputRecord, settings: Curation, limits: Limits
) -> tuple[GroupsState, list[Decision]]:
    """Take one trajectory into account; decide on its group if that was the last one to come.

    Raises
    ------
    Refused
        If it carries no reward though its outcome does, or is of an order that dispatch never gives.
    """
    trajectory: Trajectory = record.event
    reward = rewarded(trajectory)
    if trajectory.purpose == "train":
        return state, train(state, trajectory, reward, record, settings, limits)
    if trajectory.purpose == "demonstration" and reward is not None:
        remember(state, trajectory, reward, settings)
    return state, []


def train(
    state: GroupsState,
    trajectory: Trajectory,
    reward: float | None,
    record: InputRecord,
    settings: Curation,
    limits: Limits,
) -> list[Decision]:
    """Put a finish into its group; return the group's decision if it is complete and worth one."""
    order = place_of(trajectory)
    for number in state.book.open_up_to(order.number, trajectory.group_size, limits.horizon):
        state.groups.pop(number, None)
        state.counts.abandoned += 1
    if state.book.end(order, trajectory.outcome, limits.attempts) == "repeated":
        state.counts.repeated += 1
        return []
    if trajectory.version_max is not None:
        state.newest_version = max(state.newest_version, trajectory.version_max)
    if reward is not None:
        state.groups.setdefault(order.number, []).append(finish_of(trajectory, order.sample, reward))
        remember(state, trajectory, reward, settings)
    if order.number in state.book.open:
        return []
    members = state.groups.pop(order.number, [])
    group_id = group_name(order.number)
    group = decide(state, group_id, trajectory.task_id, members, settings)
    if group is None and settings.dispatch.mode == "coupled":
        group = CuratedGroup(group_id=group_id, task_id=trajectory.task_id, members=[], mean=0.0, std=0.0)
    return [Decision(curated.TOPIC, cause_id(NAME, record), group)] if group else []


def finish_of(trajectory: Trajectory, sample: int, reward: float) -> Finish:
    """Return what a group needs to know of a trajectory."""
    return Finish(
        sample=sample,
        trajectory_id=trajectory.trajectory_id,
        reward=reward,
        steps=trajectory.steps,
        step_entropies=trajectory.step_entropies,
        version_min=trajectory.version_min,
        version_max=trajectory.version_max,
    )


def remember(state: GroupsState, trajectory: Trajectory, reward: float, settings: Curation) -> None:
    """Store a success in its task's pool."""
    if settings.pool.enabled and is_success(reward):
        success = PooledSuccess(trajectory.trajectory_id, trajectory.order_id, reward, trajectory.steps)
        stored = state.pools.setdefault(trajectory.task_id, [])
        pool.add(stored, success, settings.pool.size, trajectory.purpose == "demonstration")


def decide(
    state: GroupsState, group_id: str, task_id: str, members: list[Finish], settings: Curation
) -> CuratedGroup | None:
    """Return the group to train on, or None and count why not."""
    counts = state.counts
    fresh = sorted(
        (m for m in members if not is_stale(m.version_min, state.newest_version, settings.max_staleness)),
        key=lambda member: member.sample,
    )
    counts.stale += len(members) - len(fresh)
    if not fresh:
        counts.empty += 1
        return None
    taken = None
    if settings.pool.enabled and len(fresh) > 1 and not any(is_success(m.reward) for m in fresh):
        taken = pool.draw(state.pools.get(task_id, []), task_id, group_id, settings.dispatch.seed)
    if taken is not None:
        counts.injected += 1
        del fresh[chance.number("replaced", settings.dispatch.seed, task_id, group_id) % len(fresh)]
    elif not teaches(fresh, settings):
        counts.equal += 1
        return None
    counts.curated += 1
    return group_of(group_id, task_id, fresh, taken, settings)


def group_of(
    group_id: str, task_id: str, online: list[Finish], stored: PooledSuccess | None, settings: Curation
) -> CuratedGroup:
    """Return the group with advantages over all its steps and the online members' high-entropy steps selected.

    A stored success keeps all its steps: it stands for what the policy does not do yet, and may have no entropies.
    """
    everyone: list[Finish | PooledSuccess] = [*online, stored] if stored else [*online]
    rewards, steps = worth(everyone, settings), [member.steps for member in everyone]
    mean, std = advantages.statistics(rewards, steps)
    chosen = selected_steps(online, settings)
    if stored:
        chosen.append(list(range(stored.steps)))
    gains = advantages.step_level(rewards, steps)
    credited = credit_of_steps(rewards, steps, gains, settings)
    members = [
        member_of(member, gain, of_steps, selected)
        for member, gain, of_steps, selected in zip(everyone, gains, credited, chosen, strict=True)
    ]
    return CuratedGroup(group_id=group_id, task_id=task_id, members=members, mean=mean, std=std)


def member_of(member: Finish | PooledSuccess, gain: float, of_steps: list[float], selected: list[int]) -> Member:
    """Return a member of a group; ``of_steps`` has the advantage of each of its steps, or nothing."""
    acted = (member.version_min, member.version_max) if isinstance(member, Finish) else (None, None)
    return Member(
        trajectory_id=member.trajectory_id,
        reward=member.reward,
        advantage=gain,
        selected=selected,
        source="online" if isinstance(member, Finish) else "pool",
        version_min=acted[0],
        version_max=acted[1],
        step_advantages=[of_steps[step] for step in selected] if of_steps else [],
    )


def teaches(members: Sequence[Finish], settings: Curation) -> bool:
    """Say whether the members differ in what they are worth, or in what their steps are, if those are credited."""
    rewards = worth(members, settings)
    if len(set(rewards)) > 1:
        return True
    steps = [member.steps for member in members]
    return settings.ui_s1.step_weight != 0 and credit.differs(rewards, steps, settings.ui_s1.discount)


def credit_of_steps(
    rewards: Sequence[float], steps: Sequence[int], gains: Sequence[float], settings: Curation
) -> list[list[float]]:
    """Return each member's advantage of each step, its trajectory's included; nothing if steps are not credited."""
    weight = settings.ui_s1.step_weight
    if not weight:
        return [[] for _ in gains]
    apart = credit.step_advantages(rewards, steps, settings.ui_s1.discount)
    return [[gain + weight * of_step for of_step in own] for gain, own in zip(gains, apart, strict=True)]


def worth(members: Sequence[Finish | PooledSuccess], settings: Curation) -> list[float]:
    """Return the rewards that the members' advantages are made of; what is told of each is its own reward."""
    return shortest_path([m.reward for m in members], [m.steps for m in members], settings.mobilerl.shortest_path)


def selected_steps(online: list[Finish], settings: Curation) -> list[list[int]]:
    """Return the indexes of the steps to train on, a list a member; all steps of one without an entropy a step."""
    known = [settings.entropy.enabled and len(m.step_entropies) == m.steps for m in online]
    chosen = entropy.select(
        [m.step_entropies if has else [] for m, has in zip(online, known, strict=True)], settings.entropy.keep
    )
    return [
        steps if has else list(range(member.steps)) for member, has, steps in zip(online, known, chosen, strict=True)
    ]
