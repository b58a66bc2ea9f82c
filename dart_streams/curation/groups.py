"""The groups agent: reads trajectories, publishes groups worth training on.

A group is complete when each of its ``group_size`` orders has ended, with a reward or with the fault of its last
attempt. So a lost rollout never delays the others.

A complete group is trained on if its rewards differ. Untrainable and stale rollouts are not members. Nor is one that a
person took over, unless ``feedback.credit_taken_over`` has its own steps trained on. If no member
succeeded, a stored success of the task replaces one failure (DART's experience pool). It may be a stale member of this
very group: a stored success is imitated at weight 1 at any age, where an online member would need importance weights.
The rule ``pooled`` may have it treated as an online one, with those weights.

In the coupled mode a group without a learning signal is published without members: the trainer waits for the whole
batch.
"""

from collections.abc import Sequence

import msgspec

from dart_streams import stateless_random
from dart_streams.config import Curation
from dart_streams.curation import advantages
from dart_streams.curation.hooks import Memories, Own, Rules
from dart_streams.curation.members import Finish, GroupMember, PooledSuccess
from dart_streams.curation.order_tracker import Limits, OrderTracker, format_group_id, order_key_of
from dart_streams.curation.reducer import AgentProgress, Decision, InputRecord, cause_id
from dart_streams.curation.staleness import follow_version, is_stale
from dart_streams.portable_math import interpolate_quantile
from topics import curated
from topics.curated import CuratedGroup, Member
from topics.outcomes import is_success
from topics.trajectories import Trajectory

NAME = "groups"
POOL_SIZE = 4
"""Stored successes of a task."""
TAKEN_OVER = "a person took steps, so the outcome is not the policy's alone"


class Counts(msgspec.Struct):
    """Curated and dropped groups and members by reason; ``stale_steps`` are those of stale members."""

    curated: int = 0
    equal: int = 0
    empty: int = 0
    abandoned: int = 0
    injected: int = 0
    stale: int = 0
    stale_steps: int = 0
    repeated: int = 0
    untrainable: int = 0
    too_large: int = 0


class GroupsState(msgspec.Struct):
    """Open groups, each task's pool, and the newest weight version of any trajectory."""

    progress: AgentProgress = msgspec.field(default_factory=AgentProgress)
    orders: OrderTracker = msgspec.field(default_factory=OrderTracker, name="book")
    newest_version: int = -1
    doubted_version: int | None = None
    groups: dict[int, list[Finish]] = {}
    pools: dict[str, list[PooledSuccess]] = {}
    counts: Counts = msgspec.field(default_factory=Counts)
    memories: Memories = {}


def apply(
    state: GroupsState,
    record: InputRecord,
    settings: Curation,
    limits: Limits,
    rules: Rules,
    credits_taken_over: bool = False,
) -> tuple[GroupsState, list[Decision]]:
    """Apply one trajectory; decide on its group if that completes it. Raise InvalidEvent if it is invalid."""
    reward = rules.reward(state.memories, record.event)
    trajectory = advantages.with_reward(record.event, reward)
    if trajectory.person_steps and not credits_taken_over:
        trajectory = msgspec.structs.replace(trajectory, untrainable=TAKEN_OVER)
    if trajectory.purpose == "train":
        group = finish(state, trajectory, reward, settings, limits, rules)
        return state, [Decision(curated.TOPIC, cause_id(NAME, record), group)] if group else []
    if trajectory.purpose == "demonstration":
        rules.remember(state.memories, trajectory)
        if reward is not None:
            store_success(state, trajectory, reward, settings, rules)
    return state, []


def finish(
    state: GroupsState, trajectory: Trajectory, reward: float | None, settings: Curation, limits: Limits, rules: Rules
) -> CuratedGroup | None:
    """Add a finish to its group; return the group if that completes it and it is published."""
    key = order_key_of(trajectory)
    for number in state.orders.admit(key, trajectory.group_size, trajectory.outcome, limits.horizon):
        state.groups.pop(number, None)
        state.counts.abandoned += 1
    if state.orders.finish(key, trajectory.outcome, limits.attempts) == "repeated":
        state.counts.repeated += 1
        return None
    rules.remember(state.memories, trajectory)
    known = follow_version(state, trajectory.version_max, settings.max_staleness)
    if reward is not None and (trajectory.untrainable or not known):
        state.counts.untrainable += 1
        # A stored success is imitated by its text, which needs no tokens.
        store_success(state, trajectory, reward, settings, rules)
    elif reward is not None:
        state.groups.setdefault(key.number, []).append(
            Finish(
                sample=key.sample,
                trajectory_id=trajectory.trajectory_id,
                reward=reward,
                steps=trajectory.steps,
                step_entropies=trajectory.step_entropies,
                version_min=trajectory.version_min,
                version_max=trajectory.version_max,
                screens=trajectory.screens,
                actions=trajectory.actions,
                task_id=trajectory.task_id,
                recorded=sorted({*trajectory.recorded_steps, *trajectory.person_steps}),
            )
        )
        store_success(state, trajectory, reward, settings, rules)
    if key.number in state.orders.open:
        return None
    members, group_id = state.groups.pop(key.number, []), format_group_id(key.number)
    group = decide(state, group_id, trajectory.task_id, members, settings, rules)
    if group is None and settings.dispatch.mode == "coupled":
        return CuratedGroup(group_id=group_id, task_id=trajectory.task_id, members=[], mean=0.0, std=0.0)
    return group


def store_success(state: GroupsState, trajectory: Trajectory, reward: float, settings: Curation, rules: Rules) -> None:
    """Store a success in its task's pool, unless some of its steps are not the policy's."""
    if settings.pool.enabled and is_success(reward) and not trajectory.assisted:
        success = PooledSuccess(trajectory.trajectory_id, trajectory.order_id, reward, trajectory.steps)
        success = rules.pooled(state.memories, trajectory, success)
        stored = state.pools.setdefault(trajectory.task_id, [])
        add_to_pool(stored, success, POOL_SIZE, trajectory.purpose == "demonstration")


def add_to_pool(pool: list[PooledSuccess], success: PooledSuccess, size: int, demonstration: bool) -> None:
    """Store a success, oldest first, unless its order is stored already.

    Demonstrations only fill free places; online successes replace the oldest.
    """
    if size < 1 or any(stored.order_id == success.order_id for stored in pool):
        return
    if len(pool) < size:
        pool.append(success)
    elif not demonstration:
        del pool[: len(pool) - size + 1]
        pool.append(success)


def draw_from_pool(pool: list[PooledSuccess], task_id: str, group_id: str, seed: int) -> PooledSuccess | None:
    """Return a stored success for this group, deterministic for equal pools; None from an empty pool."""
    return pool[stateless_random.number("pool", seed, task_id, group_id) % len(pool)] if pool else None


def decide(
    state: GroupsState, group_id: str, task_id: str, members: list[Finish], settings: Curation, rules: Rules
) -> CuratedGroup | None:
    """Return the group to train on; None if it is dropped, with the reason counted."""
    counts = state.counts
    fresh = sorted(
        (m for m in members if not is_stale(m.version_min, state.newest_version, settings.max_staleness)),
        key=lambda member: member.sample,
    )
    counts.stale += len(members) - len(fresh)
    counts.stale_steps += sum(member.steps for member in members) - sum(member.steps for member in fresh)
    if not fresh:
        counts.empty += 1
        return None
    stored = None
    if settings.pool.enabled and len(fresh) > 1 and not any(is_success(m.reward) for m in fresh):
        stored = draw_from_pool(state.pools.get(task_id, []), task_id, group_id, settings.dispatch.seed)
    if stored is not None:
        counts.injected += 1
        del fresh[stateless_random.number("replaced", settings.dispatch.seed, task_id, group_id) % len(fresh)]
    elif not rules.keep_group(state.memories, fresh, shaped_rewards(fresh, state.memories, rules)):
        counts.equal += 1
        return None
    group = group_of(group_id, task_id, fresh, stored, state.memories, rules)
    # Validated configurations leave room for it; a curator that could not publish foreign ones would never go on.
    if len(msgspec.json.encode(group)) > curated.TOPIC.max_message_bytes:
        counts.too_large += 1
        return None
    counts.curated += 1
    return group


def group_of(
    group_id: str, task_id: str, online: list[Finish], stored: PooledSuccess | None, memories: Memories, rules: Rules
) -> CuratedGroup:
    """Return the group with advantages over all its steps, and the selected steps of each member.

    Only steps that the policy took count and are selected, so recorded ones are not. A stored success without entropies
    keeps all its steps, and has no part in the selection of others.
    """
    members: list[GroupMember] = [*online, stored] if stored else [*online]
    rewards = shaped_rewards(members, memories, rules)
    mean, std = advantages.reward_statistics(rewards, [len(member.own) for member in members])
    rollouts = [*online, as_finish(stored, task_id)] if stored and stored.step_entropies else online
    selected = [
        sorted(frozenset(steps) - frozenset(member.recorded))
        for member, steps in zip(rollouts, rules.select_steps(memories, rollouts), strict=True)
    ]
    if stored and len(rollouts) == len(online):
        selected.append(list(range(stored.steps)))
    of_trajectories = rules.advantages(memories, members, rewards)
    of_steps = rules.step_advantages(memories, members, rewards, of_trajectories)
    return CuratedGroup(
        group_id=group_id,
        task_id=task_id,
        members=[member_of(*values) for values in zip(members, of_trajectories, of_steps, selected, strict=True)],
        mean=mean,
        std=std,
    )


def as_finish(stored: PooledSuccess, task_id: str) -> Finish:
    """Return a stored success as the rule that selects steps sees it."""
    return Finish(
        sample=-1,
        trajectory_id=stored.trajectory_id,
        reward=stored.reward,
        steps=stored.steps,
        step_entropies=stored.step_entropies,
        version_min=None,
        version_max=None,
        task_id=task_id,
    )


def member_of(member: GroupMember, advantage: float, step_advantages: list[float], selected: list[int]) -> Member:
    """Return a member of a group; ``step_advantages`` has one entry a step, or none."""
    versions = (member.version_min, member.version_max) if isinstance(member, Finish) else (None, None)
    return Member(
        trajectory_id=member.trajectory_id,
        reward=member.reward,
        advantage=advantage,
        selected=selected,
        source="online" if isinstance(member, Finish) else "pool",
        version_min=versions[0],
        version_max=versions[1],
        step_advantages=[step_advantages[step] for step in selected] if step_advantages else [],
        as_online=isinstance(member, PooledSuccess) and member.as_online,
    )


def shaped_rewards(members: Sequence[GroupMember], memories: Memories, rules: Rules) -> list[float]:
    """Return the rewards behind the advantages."""
    return rules.shape_rewards(memories, members, [member.reward for member in members])


def has_signal(own: Own, members: Sequence[GroupMember], rewards: Sequence[float]) -> bool:
    """Return whether the rewards of members with steps of the policy differ: no other has a gradient."""
    return len({reward for member, reward in zip(members, rewards, strict=True) if member.own}) > 1


def selected_steps(own: Own, online: Sequence[Finish]) -> list[list[int]]:
    """Return the indexes of each member's steps to train on: all its own, unless each step has an entropy."""
    steps = [member.own for member in online]
    entropies = [
        [member.step_entropies[step] for step in own_steps] if len(member.step_entropies) == member.steps else []
        for member, own_steps in zip(online, steps, strict=True)
    ]
    chosen = high_entropy_steps(entropies, own.settings.entropy.keep)
    return [
        [own_steps[index] for index in kept] if of_steps else own_steps
        for own_steps, of_steps, kept in zip(steps, entropies, chosen, strict=True)
    ]


def high_entropy_steps(step_entropies: Sequence[Sequence[float]], keep: float = 0.8) -> list[list[int]]:
    """Return, for each trajectory, the indexes of its high-entropy steps, in order.

    ``step_entropies`` has the mean token entropy (nats) of each step. Steps at or above the ``1 - keep`` quantile
    (linear interpolation) of the whole group are kept: those at which the policy was least certain. Source: DART, top
    80 %.
    """
    every = sorted(entropy for entropies in step_entropies for entropy in entropies)
    if not every:
        return [[] for _ in step_entropies]
    bound = interpolate_quantile(every, 1.0 - keep)
    return [[index for index, entropy in enumerate(entropies) if entropy >= bound] for entropies in step_entropies]
