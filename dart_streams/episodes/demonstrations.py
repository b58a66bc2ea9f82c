"""Orders of demonstrations, and the answers that a policy would have given. Pure."""

from collections.abc import Sequence

from dart_streams.actions.sequence import parse_written
from dart_streams.config import Config, Policy
from dart_streams.episodes import prompts
from topics.observations import Observation
from topics.rollout_orders import RolloutOrder

GROUP = "demonstrations"


def demonstration_order(order_id: str, task_id: str, max_steps: int, config: Config) -> RolloutOrder:
    """Return the order of a demonstration."""
    return RolloutOrder(
        order_id=order_id,
        group_id=GROUP,
        group_size=1,
        sample=0,
        attempt=0,
        task_id=task_id,
        max_steps=max_steps,
        purpose="demonstration",
        sampling=config.sampling(),
        after_version=0,
    )


def written_action(action: str, before: Sequence[Observation], policy: Policy) -> str:
    """Return the dialect's answer for a canonical action after ``before``; raise ValueError if it has none."""
    try:
        return policy.dialect.build().write(parse_written(action), prompts.view_of(before, policy))
    except ValueError as error:
        place = f"{before[-1].order.task_id}: step {before[-1].step}"
        raise ValueError(f"{place}: {action[:80]!r}: {error}") from None
