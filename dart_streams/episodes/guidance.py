"""Episodes whose order has recorded actions: which are executed, and when the policy leaves the recording. Pure."""

from collections.abc import Sequence

import msgspec

from dart_streams.actions import Unparsable
from dart_streams.actions.recorded import RecordedAnswer, are_same_actions
from dart_streams.actions.sequence import format_all, parse_all
from dart_streams.episodes.episode import Episode, Move, Stop, unsampled_action
from dart_streams.episodes.trajectory_summary import is_whole
from topics.actions import ActionResponse
from topics.observations import EpisodeEnd, Observation
from topics.rollout_orders import Guide

OTHER_ACTION = "not the recorded action"
"""Reason of a failed step that was compared with a recorded one."""
LEFT_RECORDING = "left the recording"
"""Reason of an episode whose policy left the recording once more than it has patches."""


class UnusableRecording(Exception):
    """A trajectory that is not in the store as a whole, or has an answer without actions."""


def recorded_answers(trajectory_id: str, observations: Sequence[Observation]) -> tuple[RecordedAnswer, ...]:
    """Return the answers of a recorded trajectory by step; raise UnusableRecording if it has none to execute."""
    taken = [observation.taken for observation in observations if observation.taken is not None]
    if not taken or not is_whole(observations):
        raise UnusableRecording(f"trajectory {trajectory_id}: no ended trajectory with actions is in the store")
    try:
        return tuple(RecordedAnswer(action.text, parse_all(action.action or "")) for action in taken)
    except Unparsable as error:
        raise UnusableRecording(f"trajectory {trajectory_id}: {error}") from None


def prefix_length(guide: Guide, answers: int) -> int:
    """Return how many of the recorded answers are executed before the policy acts; at least one is left to it."""
    if guide.mode != "prefix" or not answers:
        return 0
    return min(guide.steps or int(guide.share * answers), answers - 1)


def next_recorded(episode: Episode) -> tuple[Episode, Move] | None:
    """Return the episode with the next answer of the prefix; None if the policy is asked."""
    guide, step = episode.order.guide, episode.step - 1
    if guide is None or step >= prefix_length(guide, len(episode.recording)):
        return None
    return take_recorded(episode, guide, episode.recording[step], episode.request_id(0))


def take_recorded(episode: Episode, guide: Guide, recorded: RecordedAnswer, request_id: str) -> tuple[Episode, Move]:
    """Apply a recorded answer in place of the policy's."""
    canonical = format_all(recorded.actions)
    taken = unsampled_action(request_id, recorded.text, canonical, recorded_from=guide.trajectory_id)
    return episode.apply_actions(recorded.actions, taken)


def apply_response(episode: Episode, response: ActionResponse, attempt: int) -> tuple[Episode, Move]:
    """Apply a response as :meth:`Episode.apply_response` does; where the order has a guide, compare it first."""
    after, move = episode.apply_response(response, attempt)
    guide, recorded = episode.order.guide, next(iter(episode.recording[episode.step - 1 :]), None)
    if guide is None or recorded is None or response.error is not None:
        return after, move
    answered = after.pending.action if after.pending is not None else None
    same = answered is not None and are_same_actions(parse_all(answered), recorded.actions, guide.bound)
    if guide.mode == "prefix":
        if not guide.single or answered is None:
            return after, move
        return stop_unexecuted(after, same, OTHER_ACTION)
    if same:
        return after, move
    if episode.patches < guide.patches:
        patched = msgspec.structs.replace(episode, wrong=after.wrong, patches=episode.patches + 1)
        return take_recorded(patched, guide, recorded, response.request_id)
    return (after, move) if answered is None else stop_unexecuted(after, False, LEFT_RECORDING)


def stop_unexecuted(episode: Episode, success: bool, reason: str) -> tuple[Episode, Move]:
    """Return the end of an episode whose last answer is not executed."""
    end = EpisodeEnd(kind="success" if success else "failure", reward=float(success), reason="" if success else reason)
    return msgspec.structs.replace(episode, executing=False, ending=None), Stop(end)
