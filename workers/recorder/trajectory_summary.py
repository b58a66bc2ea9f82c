"""The summary of a finished trajectory. Pure."""

from collections.abc import Sequence
from statistics import fmean

from topics.observations import EpisodeEnd, ExecutedAction, Observation
from topics.trajectories import Trajectory


class Incomplete(Exception):
    """The stored steps do not make a trajectory: one is missing, or the last one does not end it."""


def summarise(observations: Sequence[Observation]) -> Trajectory:
    """Summarise a trajectory, steps 0..n in order, the last one with ``end``.

    Raises
    ------
    Incomplete
        If a step is missing, or the trajectory has not ended.
    """
    steps = [observation.step for observation in observations]
    if steps != list(range(len(steps))):
        missing = sorted(set(range(steps[-1] + 1)) - set(steps))
        raise Incomplete(f"steps {missing} of 0..{steps[-1]} are not in the store")
    end = observations[-1].end if observations else None
    if end is None:
        raise Incomplete(f"{len(steps)} steps are in the store, and none of them ends the trajectory")
    taken = [observation.taken for observation in observations if observation.taken is not None]
    versions = [segment.version for answer in taken for segment in answer.versions]
    return trajectory_of(
        observations[-1],
        end,
        steps=len(taken),
        step_entropies=entropies_of(taken),
        version_min=min(versions, default=None),
        version_max=max(versions, default=None),
        started_ms=observations[0].at_ms,
    )


def broken(last: Observation, reason: str) -> Trajectory:
    """Return what to announce for a trajectory that cannot be summarised: an ``env_error``, so it is tried again."""
    end = EpisodeEnd(kind="env_error", reward=None, reason=reason)
    return trajectory_of(
        last, end, steps=0, step_entropies=[], version_min=None, version_max=None, started_ms=last.at_ms
    )


def trajectory_of(
    last: Observation,
    end: EpisodeEnd,
    *,
    steps: int,
    step_entropies: list[float],
    version_min: int | None,
    version_max: int | None,
    started_ms: int,
) -> Trajectory:
    """Return the trajectory that ``last`` finishes with ``end``."""
    order = last.order
    return Trajectory(
        trajectory_id=last.trajectory_id,
        order_id=order.order_id,
        group_id=order.group_id,
        group_size=order.group_size,
        attempt=order.attempt,
        task_id=order.task_id,
        purpose=order.purpose,
        outcome=end.kind,
        reward=end.reward,
        steps=steps,
        step_entropies=step_entropies,
        version_min=version_min,
        version_max=version_max,
        started_ms=started_ms,
        finished_ms=last.at_ms,
    )


def entropies_of(taken: Sequence[ExecutedAction]) -> list[float]:
    """Return the mean token entropy (nats) of each action; empty if no token was generated, as in a demonstration."""
    if not any(answer.entropies for answer in taken):
        return []
    return [fmean(answer.entropies) if answer.entropies else 0.0 for answer in taken]
