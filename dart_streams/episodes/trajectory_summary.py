"""The summary of a finished trajectory. Pure."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

import msgspec

from dart_streams.actions import grammar
from dart_streams.actions.sequence import parse_all
from topics.observations import EpisodeEnd, ExecutedAction, Observation
from topics.outcomes import reconcile_outcome
from topics.trajectories import MOST_TAKE_OVERS, StepAction, Trajectory
from topics.values import MOST_EXCERPT, Sampling

KEY_DIGITS = 16
"""Hex digits of a screenshot's sha256 that name a screen."""


class Incomplete(Exception):
    """Stored steps with a gap or without an end."""


def is_whole(observations: Sequence[Observation]) -> bool:
    """Return whether these are all steps of an ended trajectory, in order."""
    steps = [observation.step for observation in observations]
    return bool(steps) and steps == list(range(len(steps))) and observations[-1].end is not None


def summarize(observations: Sequence[Observation]) -> Trajectory:
    """Summarize a trajectory, steps 0..n in order, the last one with ``end``.

    Raises Incomplete if a step is missing, or the trajectory has not ended.
    """
    steps = [observation.step for observation in observations]
    if steps != list(range(len(steps))):
        missing = sorted(set(range(steps[-1] + 1)) - set(steps))
        raise Incomplete(f"steps {missing} of 0..{steps[-1]} are not in the store")
    end = observations[-1].end if observations else None
    if end is None:
        raise Incomplete(f"{len(steps)} steps are in the store, and none of them ends the trajectory")
    return trajectory_of(observations, end)


def broken_trajectory(last: Observation, reason: str) -> Trajectory:
    """Return the trajectory to announce if it cannot be summarized: an ``env_error``, so it is retried."""
    step = msgspec.structs.replace(last, taken=None)
    return trajectory_of([step], EpisodeEnd(kind="env_error", reward=None, reason=reason))


def trajectory_of(observations: Sequence[Observation], end: EpisodeEnd) -> Trajectory:
    """Return the summary of ``observations``; its outcome agrees with its reward."""
    taken = [observation.taken for observation in observations if observation.taken is not None]
    versions = [span.version for action in taken for span in action.versions]
    first, last = observations[0], observations[-1]
    order = last.order
    return Trajectory(
        trajectory_id=last.trajectory_id,
        order_id=order.order_id,
        group_id=order.group_id,
        group_size=order.group_size,
        attempt=order.attempt,
        task_id=order.task_id,
        purpose=order.purpose,
        outcome=reconcile_outcome(end.kind, end.reward),
        reward=end.reward,
        steps=len(taken),
        step_entropies=entropies_of(taken),
        version_min=min(versions, default=None),
        version_max=max(versions, default=None),
        started_ms=first.at_ms,
        finished_ms=last.at_ms,
        untrainable=untrainable_reason(taken, order.sampling) if order.purpose == "train" else "",
        screens=screens_before(observations),
        actions=[step_action(action.action) for action in taken],
        guided=order.guide is not None,
        recorded_steps=[step for step, action in enumerate(taken) if action.recorded_from is not None],
        last_screen=last.screenshot.sha256[:KEY_DIGITS] if order.purpose == "explore" and last.screenshot else "",
        verdict=last.verdict,
        reason=end.reason[:MOST_EXCERPT] if order.purpose == "check" else "",
        person_steps=[step for step, action in enumerate(taken) if action.take_over is not None],
        take_overs=[*dict.fromkeys(one.take_over for one in taken if one.take_over is not None)][:MOST_TAKE_OVERS],
    )


def screens_before(observations: Sequence[Observation]) -> list[str]:
    """Return the key of the screen before each action; empty without any screenshot."""
    before = [earlier.screenshot for earlier, later in pairwise(observations) if later.taken is not None]
    return [shown.sha256[:KEY_DIGITS] if shown else "" for shown in before] if any(before) else []


def step_action(text: str | None) -> StepAction:
    """Return the first action of a canonical text; one without a name if there is none."""
    try:
        action = parse_all(text)[0] if text is not None else None
    except grammar.Unparsable:
        action = None
    if action is None:
        return StepAction()
    name = grammar.call(action).partition("(")[0]
    return StepAction(name=name, x=getattr(action, "x", None), y=getattr(action, "y", None))


def untrainable_reason(taken: Sequence[ExecutedAction], sampling: Sampling) -> str:
    """Return the reason that a training rollout cannot be trained on; empty if it can.

    Each answer of the policy needs its tokens, sampled from the whole distribution.
    """
    if not sampling.is_whole:
        return (
            f"tokens were drawn from a part of the distribution (temperature {sampling.temperature:g}, "
            f"top_p {sampling.top_p:g}): their log-probabilities are not comparable with the trainer's"
        )
    own = [(step, action) for step, action in enumerate(taken) if not (action.recorded_from or action.take_over)]
    if taken and not own:
        return "every action is a person's" if taken[-1].take_over else "every action is a recorded one"
    steps = [step for step, action in own if not 0 < len(action.tokens) == len(action.logprobs)]
    if not steps:
        return ""
    return f"{len(steps)} of {len(taken)} answers have no tokens with log-probabilities, the first at step {steps[0]}"


def entropies_of(taken: Sequence[ExecutedAction]) -> list[float]:
    """Return the mean token entropy (nats) of each action; empty without generated tokens, as in a demonstration."""
    if not any(action.entropies for action in taken):
        return []
    return [fmean(action.entropies) if action.entropies else 0.0 for action in taken]
