"""The feedback agent: turns what people say of training rollouts into groups to train on.

A correction becomes one supervised step, with the person's action in place of the policy's. A judgement counts where
it differs from the reward so far. A rollout that is good after all is imitated. One that is worse, or good in part,
becomes a policy gradient. Its advantage is the difference, which the evaluator's reward lacked. Such a gradient needs
fresh tokens, so a stale rollout is only no longer imitated. Feedback on a rollout that has not ended waits for it, an
hour at most. Feedback on one that ended long ago is refused. Either goes to the dead letters with the reason.

A rollout that a person took over is imitated in the person's steps, if it ended as a success. Its policy's steps have a
gradient only with ``feedback.credit_taken_over``.

Notes train nothing. Evaluations and other episodes train nothing either.
"""

from typing import Literal, NamedTuple

import msgspec

from dart_streams import stateless_random
from dart_streams.actions import Unparsable
from dart_streams.actions.sequence import parse_written
from dart_streams.config import Config
from dart_streams.curation.hooks import Memories, Rules
from dart_streams.curation.members import EndedRollout, forget_oldest, imitated_member, single_group
from dart_streams.curation.reducer import (
    AgentProgress,
    Decision,
    Effect,
    InputRecord,
    InvalidEvent,
    RefusedInput,
    cause_id,
    source_of,
)
from dart_streams.curation.staleness import follow_version, is_stale
from topics import curated
from topics.curated import CuratedGroup, Member
from topics.curation_log import Source
from topics.feedback import Feedback, Judgement
from topics.outcomes import is_success
from topics.trajectories import Trajectory

NAME = "feedback"
REWARDS: dict[Judgement, float] = {"good": 1.0, "partial": 0.5, "bad": 0.0}
MOST_ROLLOUTS = 16_384
"""Newest trajectories that can be given feedback, and newest feedback that is recognized if it comes again."""
MOST_ENDED = 65_536
"""Trajectories that ended before those, and are known to have ended."""
LONGEST_WAIT_MS = 3_600_000
"""Time after which feedback waits no longer, in that of the records."""
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


class FeedbackCounts(msgspec.Struct):
    """Feedback by what became of it; ``agreed`` and ``stale`` judgements make no gradient.

    ``forgotten`` feedback came too late, or waited for too long. ``shown`` are the successes of people who took over.
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
    """Ended trajectories by id, feedback that waits for its trajectory, and the ids of feedback that was applied.

    ``ended`` has numbers of the ids of earlier trajectories, and ``arrived`` place and time (epoch ms) of
    each feedback that waits.
    """

    progress: AgentProgress = msgspec.field(default_factory=AgentProgress)
    newest_version: int = -1
    doubted_version: int | None = None
    rollouts: dict[str, EndedRollout] = {}
    ended: dict[int, bool] = {}
    waiting: dict[str, list[Feedback]] = {}
    arrived: dict[str, tuple[Source, int]] = {}
    applied: dict[str, bool] = {}
    counts: FeedbackCounts = msgspec.field(default_factory=FeedbackCounts)
    memories: Memories = {}


def apply(
    state: FeedbackState, record: InputRecord, settings: FeedbackSettings, rules: Rules
) -> tuple[FeedbackState, list[Effect]]:
    """Apply one feedback, or a trajectory; raise InvalidEvent for feedback that can't be applied."""
    groups: list[CuratedGroup] = []
    refusals: list[RefusedInput] = []
    if isinstance(record.event, Trajectory):
        groups, refusals = note_ended(state, record.event, settings, rules)
    elif isinstance(record.event, Feedback) and record.event.feedback_id not in state.applied:
        groups = take_in(state, record, settings)
    refusals += refuse_waiting(state, record.at_ms)
    cause = cause_id(NAME, record)
    ids = [cause if number == 0 else f"{cause}/{number}" for number in range(len(groups))]
    return state, [*(Decision(curated.TOPIC, *pair) for pair in zip(ids, groups, strict=True)), *refusals]


def note_ended(
    state: FeedbackState, trajectory: Trajectory, settings: FeedbackSettings, rules: Rules
) -> tuple[list[CuratedGroup], list[RefusedInput]]:
    """Note an ended trajectory, and apply the feedback that has waited for it; return what of that is refused too."""
    if trajectory.trajectory_id in state.rollouts:
        return [], []
    known = follow_version(state, trajectory.version_max, settings.max_staleness)
    credited = settings.credits_taken_over or not trajectory.person_steps
    trainable = credited and known and not trajectory.untrainable
    rollout = state.rollouts[trajectory.trajectory_id] = EndedRollout(
        task_id=trajectory.task_id,
        purpose=trajectory.purpose,
        reward=rules.reward(state.memories, trajectory),
        steps=trajectory.steps,
        own=trajectory.own_steps if credited else [],
        version_min=trajectory.version_min if trainable else None,
        version_max=trajectory.version_max if trainable else None,
        person=trajectory.person_steps,
    )
    for name in forget_oldest(state.rollouts, MOST_ROLLOUTS):
        state.ended[stateless_random.number("ended", name)] = True
    forget_oldest(state.ended, MOST_ENDED)
    refusals = []
    groups = shown_steps(state, trajectory, rollout)
    for feedback in state.waiting.pop(trajectory.trajectory_id, []):
        try:
            groups += groups_of(state, feedback, settings)
        except InvalidEvent as error:
            state.counts.refused += 1
            if feedback.feedback_id in state.arrived:
                refusals.append(RefusedInput(state.arrived[feedback.feedback_id][0], str(error)))
        state.arrived.pop(feedback.feedback_id, None)
    return groups, refusals


def take_in(state: FeedbackState, record: InputRecord, settings: FeedbackSettings) -> list[CuratedGroup]:
    """Apply a feedback, or let it wait for its trajectory; raise InvalidEvent if it says nothing, or comes too late."""
    feedback: Feedback = record.event
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
    if stateless_random.number("ended", feedback.trajectory_id) in state.ended:
        state.counts.forgotten += 1
        raise InvalidEvent(
            f"feedback {feedback.feedback_id}: {MOST_ROLLOUTS} rollouts have ended after trajectory "
            f"{feedback.trajectory_id}, and only the newest are kept for feedback: give it sooner"
        )
    if feedback.trajectory_id not in state.rollouts:
        state.waiting.setdefault(feedback.trajectory_id, []).append(feedback)
        state.arrived[feedback.feedback_id] = (source_of(record), record.at_ms)
        return []
    return groups_of(state, feedback, settings)


def refuse_waiting(state: FeedbackState, now_ms: int) -> list[RefusedInput]:
    """Refuse what waits longest, at ``now_ms`` (epoch ms): beyond the bound of all, or of their time."""
    refusals = []
    count = sum(map(len, state.waiting.values()))
    while state.waiting:
        name, waiting = next(iter(state.waiting.items()))
        source, at_ms = state.arrived.get(waiting[0].feedback_id, (None, now_ms))
        if count > MOST_WAITING:
            reason = f"more than {MOST_WAITING} others wait for a rollout to end: give it again then"
        elif at_ms < now_ms - LONGEST_WAIT_MS:
            reason = "no rollout of this id has ended within an hour: it is unknown, or was lost"
        else:
            break
        feedback = waiting.pop(0)
        if not waiting:
            del state.waiting[name]
        state.arrived.pop(feedback.feedback_id, None)
        state.counts.forgotten += 1
        count -= 1
        if source is not None:
            refusals.append(RefusedInput(source, f"feedback {feedback.feedback_id}: trajectory {name}: {reason}"))
    return refusals


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


def feedback_group(feedback: Feedback, rollout: EndedRollout, member: Member) -> CuratedGroup:
    """Return the group that a feedback makes of its trajectory."""
    return single_group(f"feedback-{feedback.feedback_id}", [feedback.feedback_id], rollout, member)
