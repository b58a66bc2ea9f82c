"""Episodes that a person plays in place of the policy: their actions, and the limits on their time.

An order with a ``lease`` asks no rollout worker. The person's page (``dart-streams demonstrate``) sends actions and
signs of life under the id that the policy's request would have.
"""

import msgspec

from dart_streams import actions
from dart_streams.config import Config
from dart_streams.episodes.episode import Episode, Move, Stop
from topics.observations import EpisodeEnd
from topics.rollout_orders import PersonLease, RolloutOrder
from workers.env.environment import Size, rescale
from workers.env.policy_client import InvalidResponse, PolicyClient
from workers.env.returned_values import printable_text

EPISODE_S = 480.0
"""Least time limit of a person's episode: people are slower than policies. A slot polls within ten minutes."""


def episode_limit_s(order: RolloutOrder, config: Config) -> float:
    """Return the wall-clock limit of an order's episode."""
    return config.env.episode_timeout_s if order.lease is None else max(config.env.episode_timeout_s, EPISODE_S)


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
    lease_s = lease.lease_ms / 1000
    try:
        response = await policy.await_person(episode.request_id(0), lease_s)
    except TimeoutError:
        return episode, person_fault(f"the person was lost: no action and no sign of life for {lease_s:g} s")
    except InvalidResponse as error:
        return episode, person_fault(f"the person's action can't be read: {error}")
    if response.error is not None:
        return episode, person_fault(response.error)
    try:
        action = actions.parse(response.text)
    except actions.Unparsable as error:
        return episode, person_fault(f"the person's action can't be read: {error}")
    played, move = episode.demonstrate(rescale(action, screen, image))
    if played.pending is not None:
        timed = msgspec.structs.replace(played.pending, generate_ms=response.generate_ms)
        played = msgspec.structs.replace(played, pending=timed)
    return played, move


def person_fault(reason: str) -> Stop:
    """Return the end of an episode by a fault on the person's side."""
    return Stop(EpisodeEnd(kind="policy_error", reward=None, reason=printable_text(reason)))
