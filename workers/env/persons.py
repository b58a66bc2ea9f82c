"""Episodes that a person plays in place of the policy: their actions, and the limits on their time.

An order with a ``lease`` asks no rollout worker. The person's page (``dart-streams demonstrate``) sends actions and
signs of life under the id that the policy's request would have.

A rollout of the policy may be taken over (:mod:`workers.env.take_overs`). A lost person then gives it back, as the
policy can go on: each action says itself whose it is.
"""

import msgspec
import structlog

from dart_streams import actions
from dart_streams.config import Config
from dart_streams.episodes.episode import Episode, Move, Stop
from topics.actions import ActionResponse
from topics.feedback import Feedback
from topics.observations import EpisodeEnd
from topics.rollout_orders import PersonLease, RolloutOrder
from workers.env.environment import Size, rescale
from workers.env.policy_client import InvalidResponse, PolicyClient
from workers.env.returned_values import printable_text

EPISODE_S = 480.0
"""Least time limit of a person's episode: people are slower than policies. A slot polls within ten minutes."""


log = structlog.get_logger()


class PersonGone(Exception):
    """The person shows no sign of life, or what they sent can't be read; the message is a plain reason."""


def episode_limit_s(order: RolloutOrder, config: Config) -> float:
    """Return the wall-clock limit of an order's episode."""
    return config.env.episode_timeout_s if order.lease is None else person_limit_s(config)


def person_limit_s(config: Config) -> float:
    """Return the wall-clock limit of an episode with a person, from its beginning."""
    return max(config.env.episode_timeout_s, EPISODE_S)


def plays_oracle(order: RolloutOrder, config: Config) -> bool:
    """Return whether the environment's oracle plays an order."""
    if order.purpose == "check":
        return not order.plan
    return order.purpose == "demonstration" and order.lease is None and not config.rollout.demonstrates


async def next_move(
    policy: PolicyClient, episode: Episode, lease: PersonLease, screen: Size, image: Size
) -> tuple[Episode, Move]:
    """Return the episode with the person's next action, given in pixels of ``screen``; ``image`` is the policy's.

    A lost person ends it as a fault, with a plain reason.
    """
    try:
        response, action = await read_action(policy, episode.request_id(0), lease)
    except PersonGone as gone:
        return episode, person_fault(str(gone))
    if action is None:
        return episode, person_fault(response.error or "the person gave the episode back")
    return apply_timed(episode, rescale(action, screen, image), response)


async def taken_move(
    policy: PolicyClient, episode: Episode, taken: Feedback, screen: Size, image: Size
) -> tuple[Episode, Move] | None:
    """Return the episode with the next action of the person who has taken it over, as :func:`next_move` does.

    None if it goes back to the policy: the person gives it back, or is gone. They may also end it as a fault.
    """
    assert taken.lease is not None
    try:
        response, action = await read_action(policy, episode.person_id, taken.lease)
    except PersonGone as gone:
        log.info("episode goes back to the policy", take_over=taken.feedback_id, reason=str(gone))
        return None
    if response.error is not None:
        return episode, person_fault(response.error)
    if action is None:
        return None
    return apply_timed(episode, rescale(action, screen, image), response, taken.feedback_id)


async def read_action(
    policy: PolicyClient, request_id: str, lease: PersonLease
) -> tuple[ActionResponse, actions.Action | None]:
    """Return what a person sends, with its action, None if they end the episode or give it back; raise PersonGone."""
    try:
        response = await policy.await_person(request_id, lease)
        gone = response.error is not None or bool(response.gives_back)
        return response, None if gone else actions.parse(response.text)
    except TimeoutError:
        silent_s = lease.lease_ms / 1000
        raise PersonGone(f"the person was lost: no action and no sign of life for {silent_s:g} s") from None
    except (InvalidResponse, actions.Unparsable) as error:
        raise PersonGone(f"the person's action can't be read: {error}") from None


def apply_timed(
    episode: Episode, action: actions.Action, response: ActionResponse, take_over: str | None = None
) -> tuple[Episode, Move]:
    """Apply a person's action, in pixels of the policy's image, with the time that they took to decide."""
    played, move = episode.demonstrate(action, take_over)
    if played.pending is not None:
        timed = msgspec.structs.replace(played.pending, generate_ms=response.generate_ms)
        played = msgspec.structs.replace(played, pending=timed)
    return played, move


def person_fault(reason: str) -> Stop:
    """Return the end of an episode by a fault on the person's side."""
    return Stop(EpisodeEnd(kind="policy_error", reward=None, reason=printable_text(reason)))
