"""The feedback agent: turns what people say of training rollouts into groups to train on.

A correction becomes one supervised step, with the person's action in place of the policy's. A judgement counts where
it differs from the reward so far. A rollout that is good after all is imitated. One that is worse, or good in part,
becomes a policy gradient. Its advantage is the difference, which the evaluator's reward lacked. Such a gradient needs
fresh tokens, so a stale rollout is only no longer imitated. Feedback on a rollout that has not ended waits for it.

A rollout that a person took over is imitated in the person's steps, if it ended as a success. Its policy's steps have a
gradient only with ``feedback.credit_taken_over``.

Notes train nothing. Evaluations and other episodes train nothing either.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Literal, NamedTuple

import msgspec

from dart_streams.actions import Unparsable
from dart_streams.actions.sequence import parse_written
from dart_streams.config import Config
from dart_streams.curation.hooks import Memories, Rules
from dart_streams.curation.reducer import AgentProgress, Decision, InputRecord, InvalidEvent, cause_id
from dart_streams.curation.staleness import is_stale
from topics import curated
from topics.curated import CuratedGroup, Member
from topics.feedback import Feedback, Judgement
from topics.outcomes import is_success
from topics.trajectories import Trajectory
from topics.values import Purpose

NAME = "feedback"
REWARDS: dict[Judgement, float] = {"good": 1.0, "partial": 0.5, "bad": 0.0}
MOST_ROLLOUTS = 4096
"""Newest trajectories that can be given feedback, and newest feedback that is recognized if it comes again."""
MOST_WAITING = 1024
"""Newest feedback that waits for the end of its trajectory."""


class FeedbackSettings(NamedTuple):
    """Whose reward counts, the staleness bound of the run in weight versions, and whether assisted policies count."""

    reward: Literal["environment", "person"]
    max_staleness: int
    credits_taken_over: bool = False

    @classmethod
    def of(cls, config: Config) -> "FeedbackSettings":
        """Return the settings of a deployment."""
        return cls(config.feedback.reward, config.curation.max_staleness, config.feedback.credit_taken_over)


class EndedRollout(msgspec.Struct, frozen=True):
    """What is kept of an ended trajectory; ``reward`` is the one that counts so far, None without any.

    ``own`` are the indexes of the policy's steps, if they are credited, and ``person`` those of people. ``version_min``
    is None if its tokens can't be trained on.
    """

    task_id: str
    purpose: Purpose
    reward: float | None
    steps: int
    own: list[int]
    version_min: int | None
    version_max: int | None
    person: list[int] = []


class FeedbackCounts(msgspec.Struct):
    """Feedback by what became of it; ``agreed`` and ``stale`` judgements make no gradient.

    ``forgotten`` feedback waited for a trajectory that did not end in time. ``shown`` are the successes of people who
    took a rollout over.
    """

    corrections: int = 0
    judgements: int = 0
    agreed: int = 0
    stale: int = 0
    notes: int = 0
    refused: int = 0
    forgotten: int = 0
    take_overs: int = 0
    shown: int = 0


class FeedbackState(msgspec.Struct):
    """Ended trajectories by id, feedback that waits for its trajectory, and the ids of feedback that was applied."""

    progress: AgentProgress = msgspec.field(default_factory=AgentProgress)
    newest_version: int = -1
    rollouts: dict[str, EndedRollout] = {}
    waiting: dict[str, list[Feedback]] = {}
    applied: dict[str, bool] = {}
    counts: FeedbackCounts = msgspec.field(default_factory=FeedbackCounts)
    memories: Memories = {}


def apply(
    state: FeedbackState, record: InputRecord, settings: FeedbackSettings, rules: Rules
) -> tuple[FeedbackState, list[Decision]]:
    """Apply one feedback, or a trajectory; raise InvalidEvent for feedback that can't be applied."""
    groups: list[CuratedGroup] = []
    if isinstance(record.event, Trajectory):
        groups = note_ended(state, record.event, settings, rules)
    elif isinstance(record.event, Feedback) and record.event.feedback_id not in state.applied:
        groups = take_in(state, record.event, settings)
    cause = cause_id(NAME, record)
    ids = [cause if number == 0 else f"{cause}/{number}" for number in range(len(groups))]
    return state, [Decision(curated.TOPIC, name, group) for name, group in zip(ids, groups, strict=True)]


def note_ended(
    state: FeedbackState, trajectory: Trajectory, settings: FeedbackSettings, rules: Rules
) -> list[CuratedGroup]:
    """Note an ended trajectory, and apply the feedback that has waited for it."""
    if trajectory.trajectory_id in state.rollouts:
        return []
    if trajectory.version_max is not None:
        state.newest_version = max(state.newest_version, trajectory.version_max)
    credited = settings.credits_taken_over or not trajectory.person_steps
    versions = (
        (trajectory.version_min, trajectory.version_max) if credited and not trajectory.untrainable else (None, None)
    )
    rollout = state.rollouts[trajectory.trajectory_id] = EndedRollout(
        task_id=trajectory.task_id,
        purpose=trajectory.purpose,
        reward=rules.reward(state.memories, trajectory),
        steps=trajectory.steps,
        own=trajectory.own_steps if credited else [],
        version_min=versions[0],
        version_max=versions[1],
        person=trajectory.person_steps,
    )
    forget_oldest(state.rollouts, MOST_ROLLOUTS)
    groups = shown_steps(state, trajectory, rollout)
    for feedback in state.waiting.pop(trajectory.trajectory_id, []):
        try:
            groups += groups_of(state, feedback, settings)
        except InvalidEvent:
            state.counts.refused += 1
    return groups


def take_in(state: FeedbackState, feedback: Feedback, settings: FeedbackSettings) -> list[CuratedGroup]:
    """Apply a feedback, or let it wait for its trajectory; raise InvalidEvent if it says nothing."""
    if reason := reason_against(feedback):
        raise InvalidEvent(f"feedback {feedback.feedback_id}: {reason}")
    state.applied[feedback.feedback_id] = True
    forget_oldest(state.applied, MOST_ROLLOUTS)
    if feedback.kind == "note":
        state.counts.notes += 1
        return []
    if feedback.kind == "take-over":
        state.counts.take_overs += 1
        return []
    if feedback.trajectory_id not in state.rollouts:
        state.waiting.setdefault(feedback.trajectory_id, []).append(feedback)
        forget_waiting(state)
        return []
    return groups_of(state, feedback, settings)


def forget_waiting(state: FeedbackState) -> None:
    """Remove the first feedback of the trajectory that waits longest while more than :data:`MOST_WAITING` waits."""
    while sum(map(len, state.waiting.values())) > MOST_WAITING:
        name, feedback = next(iter(state.waiting.items()))
        del feedback[0]
        if not feedback:
            del state.waiting[name]
        state.counts.forgotten += 1


def forget_oldest(items: dict[str, EndedRollout] | dict[str, bool], most: int) -> None:
    """Remove the oldest items beyond ``most``."""
    for name in list(islice(items, max(0, len(items) - most))):
        del items[name]


def reason_against(feedback: Feedback) -> str:
    """Return why a feedback says nothing that can be applied, empty if it does."""
    if feedback.kind == "note":
        return "" if feedback.note else "a note needs a text"
    if not feedback.trajectory_id:
        return f"a {feedback.kind} needs a trajectory_id"
    if feedback.kind == "judgement":
        return "" if feedback.judgement else "a judgement is good, partial or bad"
    if feedback.kind == "take-over":
        return "" if feedback.lease else "a take-over needs the lease of its person"
    if feedback.step is None:
        return "a correction needs the step that it corrects"
    try:
        parse_written(feedback.action)
    except Unparsable as error:
        return f"its action can't be read: {error}"
    return ""


def groups_of(state: FeedbackState, feedback: Feedback, settings: FeedbackSettings) -> list[CuratedGroup]:
    """Return the groups to train on because of a feedback; raise InvalidEvent if it is not of a training rollout."""
    rollout = state.rollouts[feedback.trajectory_id]
    if rollout.purpose != "train":
        raise InvalidEvent(
            f"feedback {feedback.feedback_id}: trajectory {feedback.trajectory_id} has the purpose {rollout.purpose}, "
            "and only training rollouts are trained on: give it a note"
        )
    if feedback.kind == "correction":
        return [corrected_step(state, feedback, rollout)]
    return judged_rollout(state, feedback, rollout, settings)


def shown_steps(state: FeedbackState, trajectory: Trajectory, rollout: EndedRollout) -> list[CuratedGroup]:
    """Return the supervised group of the steps by which people solved a rollout; none without a success of theirs.

    The group names the take-overs, which the trajectory has: it does not matter which of both topics is read first.
    """
    solved = rollout.reward is not None and is_success(rollout.reward)
    if not (solved and rollout.person and rollout.purpose == "train"):
        return []
    state.counts.shown += 1
    identity = trajectory.trajectory_id
    member = imitated_member(identity, rollout.reward or 0.0, rollout.person)
    return [single_group(f"take-over-{identity}", trajectory.take_overs, rollout, member)]


def corrected_step(state: FeedbackState, feedback: Feedback, rollout: EndedRollout) -> CuratedGroup:
    """Return the supervised group of a correction; raise InvalidEvent for a step that the trajectory does not have."""
    assert feedback.step is not None
    if feedback.step >= rollout.steps:
        raise InvalidEvent(
            f"feedback {feedback.feedback_id}: trajectory {feedback.trajectory_id} has {rollout.steps} actions, and "
            f"none of the index {feedback.step}"
        )
    state.counts.corrections += 1
    member = imitated_member(feedback.trajectory_id, rollout.reward or 0.0, [feedback.step], [feedback.action])
    return feedback_group(feedback, rollout, member)


def judged_rollout(
    state: FeedbackState, feedback: Feedback, rollout: EndedRollout, settings: FeedbackSettings
) -> list[CuratedGroup]:
    """Return the group of a judgement; none if the evaluator's reward counts, or the judgement agrees with it."""
    assert feedback.judgement is not None
    state.counts.judgements += 1
    if settings.reward == "environment":
        return []
    reward = REWARDS[feedback.judgement]
    difference = reward - (rollout.reward or 0.0)
    state.rollouts[feedback.trajectory_id] = msgspec.structs.replace(rollout, reward=reward)
    if difference == 0:
        state.counts.agreed += 1
        return []
    if feedback.judgement == "good":
        shown = imitated_member(feedback.trajectory_id, reward, sorted([*rollout.own, *rollout.person]))
        return [feedback_group(feedback, rollout, shown)]
    member = Member(
        trajectory_id=feedback.trajectory_id,
        reward=reward,
        advantage=difference,
        selected=rollout.own,
        source="online",
        version_min=rollout.version_min,
        version_max=rollout.version_max,
    )
    if rollout.version_min is None or is_stale(rollout.version_min, state.newest_version, settings.max_staleness):
        # It trains nothing, but ends the imitation of what was judged good before.
        state.counts.stale += 1
        member = msgspec.structs.replace(member, selected=[], version_min=None, version_max=None)
    return [feedback_group(feedback, rollout, member)]


def imitated_member(trajectory_id: str, reward: float, selected: list[int], corrections: Sequence[str] = ()) -> Member:
    """Return a trajectory to imitate in the steps ``selected``, or in the ``corrections`` of those."""
    return Member(
        trajectory_id=trajectory_id,
        reward=reward,
        advantage=1.0,
        selected=selected,
        source="pool",
        version_min=None,
        version_max=None,
        corrections=list(corrections),
    )


def feedback_group(feedback: Feedback, rollout: EndedRollout, member: Member) -> CuratedGroup:
    """Return the group that a feedback makes of its trajectory."""
    return single_group(f"feedback-{feedback.feedback_id}", [feedback.feedback_id], rollout, member)


def single_group(group_id: str, feedback: list[str], rollout: EndedRollout, member: Member) -> CuratedGroup:
    """Return a group of one trajectory, made of feedback of these ids."""
    return CuratedGroup(
        group_id=group_id, task_id=rollout.task_id, members=[member], mean=member.reward, std=0.0, feedback=feedback
    )
