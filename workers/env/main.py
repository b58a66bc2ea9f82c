"""The environment worker: plays an episode for each rollout order.

=============  ==================================================================================================
consumes       ``rollout-orders`` (group ``env``), ``actions`` (its own partition, without a group), with
               ``tasks.proposals`` also ``tasks`` (from the beginning, without a group), with ``feedback.enabled``
               also ``feedback`` (from the end, without a group)
produces       ``observations``, ``action-requests``, ``rollout-orders.dlq``, ``actions.dlq``; screenshots (store)
waits for      orders, while slots are idle; then the reply to each request, ``env.request_timeout_s`` at most
unblocked by   dispatch; the rollout workers
=============  ==================================================================================================

An order is committed when its episode's last observation is published. Another worker gets the orders of a dead one,
and plays them from their start, as new trajectories. An order that repeatedly ended its workers ends as ``env_error``
(:mod:`workers.env.lethal_orders`).
"""

import contextlib
import functools
from typing import Any, NamedTuple

import structlog

from dart_streams.bus.clients import Publisher, open_topics
from dart_streams.bus.topic_watch import watch_topics
from dart_streams.config import Config, tasks
from dart_streams.errors import ConfigError
from dart_streams.store import open_store
from topics import action_requests, actions, feedback, observations, rollout_orders
from topics.rollout_orders import RolloutOrder
from workers.env.backends.registry import backend_of
from workers.env.blocked_loop import end_when_blocked
from workers.env.episode_runner import EpisodeRunner
from workers.env.fault_boundary import ContainedBackend
from workers.env.health import WorkerHealth
from workers.env.health_gate import HealthGate
from workers.env.lethal_orders import LethalOrders
from workers.env.metrics import SlotTimes
from workers.env.policy_client import PolicyClient
from workers.env.proposed_tasks import ProposedTasks, find_task, open_proposals
from workers.env.take_overs import TakeOvers
from workers.runtime import lifecycle
from workers.runtime.ordered_consumer import Delivery, OrderedConsumer

GROUP = "env"
TAKE_OVER_FETCH_MS = 200
"""A person waits for their turn, while the policy goes on."""

log = structlog.get_logger()


async def connect(config: Config, worker_id: str, resources: contextlib.AsyncExitStack) -> lifecycle.Worker:
    """Connect to the broker, the store and the backend; return the worker, ready to play.

    Raises ConfigError if the task set cannot be used, ServiceUnavailable if a service does not answer within its bound.
    """
    task_set = tasks.tasks_of(config)
    publisher = await resources.enter_async_context(Publisher(config.bus, worker_id))
    store = await open_store(config, resources)
    backend = backend_of(config)
    resources.push_async_callback(backend.stop)
    await backend.start()
    policy = await resources.enter_async_context(PolicyClient(config, worker_id, publisher))
    gate = HealthGate(WorkerHealth(len(task_set)))
    orders = OrderedConsumer(
        config,
        worker_id,
        publisher,
        rollout_orders.TOPIC,
        "order_id",
        GROUP,
        gate=gate,
        # All slots may be busy, without a poll, for as long as the longest episode.
        max_poll_interval_ms=int(max(2 * config.env.episode_timeout_s + 60.0, 600.0) * 1000),
    )
    await resources.enter_async_context(orders)
    proposed = await open_proposals(config, publisher, resources) if config.tasks.proposals else None
    take_overs = TakeOvers()
    runner = EpisodeRunner(config, worker_id, backend, store, publisher, policy, take_overs)
    lethal = LethalOrders(orders, gate)
    times = SlotTimes(config.env.slots)
    times.export()

    slots = Slots(task_set, proposed, orders, runner, gate, lethal, times)
    log.info("playing", slots=config.env.slots, backend=config.env.backend, tasks=len(task_set.train))
    used = (rollout_orders.TOPIC, observations.TOPIC, action_requests.TOPIC, actions.TOPIC)
    background: dict[str, Any] = {
        "responses": policy.read_responses,
        "commits": orders.commit_periodically,
        "health": functools.partial(gate.watch, orders, config.env.episode_timeout_s),
        "topics": functools.partial(watch_topics, publisher, used),
        "event loop": end_when_blocked,
    }
    if proposed is not None:
        background["proposals"] = proposed.read
    if config.feedback.enabled:
        followed = open_topics(config.bus, publisher, (feedback.TOPIC,), TAKE_OVER_FETCH_MS, at_end=True)
        given = await resources.enter_async_context(followed)
        background["take-overs"] = functools.partial(take_overs.read, given)
    if ahead := getattr(backend, "ahead", 0):
        expect = functools.partial(expect_order, runner.backend, task_set)
        background["orders ahead"] = functools.partial(orders.read_ahead, ahead, expect)
    return lifecycle.Worker(functools.partial(orders.serve, slots.play, config.env.slots), background, orders.find_lack)


class Slots(NamedTuple):
    """Dependencies of the slots that play orders."""

    task_set: tasks.TaskSet
    proposed: ProposedTasks | None
    orders: OrderedConsumer
    runner: EpisodeRunner
    gate: HealthGate
    lethal: LethalOrders
    times: SlotTimes

    async def play(self, slot: int, delivery: Delivery) -> None:
        """Play the episode of an order, or reject it; one of an unknown task goes to the dead letters as well."""
        order: RolloutOrder = delivery.event
        try:
            task = await find_task(self.task_set, self.proposed, order.task_id)
        except ConfigError as error:
            await self.orders.dead_letter(delivery.record, str(error))
            await self.runner.reject(order, str(error))
        else:
            with self.gate.playing():
                if reason := self.lethal.refusal(delivery, task.task_id) or await self.gate.refusal(task.task_id):
                    await self.runner.reject(order, reason)
                else:
                    set_state = functools.partial(self.times.enter, slot)
                    note_reset = functools.partial(self.gate.note_reset, slot, task.task_id)
                    # A broken proposal says nothing of the slot.
                    notes = () if order.purpose == "check" else (note_reset,)
                    async with self.lethal.turn(delivery, task.task_id):
                        await self.runner.run(order, task, set_state, *notes)
        self.times.enter(slot, "idle")


def expect_order(backend: ContainedBackend, task_set: tasks.TaskSet, order: RolloutOrder) -> None:
    """Let a backend prepare for a waiting order; an unknown task is ignored here, and rejected when played."""
    with contextlib.suppress(ConfigError):
        backend.expect(task_set.get(order.task_id))
