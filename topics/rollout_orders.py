"""rollout-orders: orders of dispatch, each for one rollout of a task."""

from typing import Literal

import msgspec

from topics.topic import Topic
from topics.values import Attempt, GroupSize, LeaseMs, Name, Pixels, Prose, Purpose, Sampling, Share, Steps, Version


class Guide(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a rollout uses the actions of a recorded trajectory of its task.

    ``prefix``: the first ``steps`` of the recorded actions are executed before the policy acts. Without ``steps`` it is
    the first ``share`` of them, rounded down. With ``single`` the policy's next action ends the episode, and is not
    executed: the reward is 1 if it is the recorded action, else 0.

    ``patches``: the policy acts. Where its action is not the recorded one, the recorded one is executed instead, at
    most ``patches`` times; then the episode ends as a failure.

    An action is the recorded one if both are equal but for places at most ``bound`` pixels apart, in x and in y, of the
    policy's image.
    """

    trajectory_id: Name
    mode: Literal["prefix", "patches"]
    share: Share = 0.0
    steps: Steps = 0
    single: bool = False
    patches: Steps = 0
    bound: Pixels = 0


class PersonLease(msgspec.Struct, frozen=True, kw_only=True):
    """The person who plays a rollout in place of the policy, as the ``worker_id`` of their records on ``actions``.

    No action is requested. The person reads ``observations``, and sends each action under the id of its first request.
    The rollout ends as a ``policy_error`` when it has waited ``lease_ms`` for an action or a sign of life.
    """

    person: Name
    lease_ms: LeaseMs


class RolloutOrder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An order for one rollout: sample ``sample`` of ``group_size`` of a group, attempt ``attempt`` (from 0).

    ``max_steps`` bounds the episode; ``after_version`` is the newest weight version that dispatch knew. ``guide`` has
    recorded actions for the rollout, and is omitted without any. ``plan`` has the actions of an exploration, or of
    a check's solution, in pixels of the screen, which the env worker executes. ``lease`` names the person who plays it.
    Both are omitted otherwise.
    """

    order_id: Name
    group_id: Name
    group_size: GroupSize
    sample: GroupSize
    attempt: Attempt
    task_id: Name
    max_steps: Steps
    purpose: Purpose
    sampling: Sampling
    after_version: Version
    guide: Guide | None = None
    plan: list[Prose] = []
    lease: PersonLease | None = None


TOPIC = Topic(name="rollout-orders", event=RolloutOrder, key="order_id", partitions=4, shared=True)
