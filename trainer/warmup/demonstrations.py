"""Demonstrations for the warm-up: ordered, awaited and read back as samples. Without torch.

| consumes | produces | waits for | unblocked by |
|---|---|---|---|
| trajectories | rollout-orders | demonstrations, bounded | an env worker and a recorder on the same prefix |
"""

import contextlib
import random
from collections.abc import Callable, Iterable, Sequence

import structlog
from kafka.errors import KafkaError

from dart_streams.bus import sync_clients
from dart_streams.bus.codec import Undecodable, decode, encode
from dart_streams.config import Bus, Config
from dart_streams.config.tasks import Task
from dart_streams.deadline import Deadline
from dart_streams.errors import ServiceUnavailable, UserError
from topics import rollout_orders, trajectories
from topics.rollout_orders import RolloutOrder
from topics.trajectories import Trajectory
from topics.values import Sampling
from trainer.data.prefetch import GroupReader
from trainer.data.samples import ReadyGroup
from trainer.data.successes import RememberedSuccess, sft_group

POLL_TIMEOUT_MS = 200
SEND_TIMEOUT_S = 30.0
CLIENT = "policy-build"

log = structlog.get_logger()


def demonstration_orders(tasks: Sequence[Task], count: int, seed: int) -> list[RolloutOrder]:
    """Return orders for ``count`` demonstrations, each of another task, in an order drawn from ``seed``.

    Fewer than ``count`` if there are fewer ``tasks``: the same task shows the same thing twice.
    """
    chosen = random.Random(seed).sample(list(tasks), min(count, len(tasks)))
    return [
        RolloutOrder(
            order_id=f"demonstration-{seed}-{index}",
            group_id=f"demonstration-{seed}-{index}",
            group_size=1,
            sample=0,
            attempt=0,
            task_id=task.task_id,
            max_steps=task.max_steps,
            purpose="demonstration",
            sampling=Sampling(),
            after_version=0,
        )
        for index, task in enumerate(chosen)
    ]


def publish(bus: Bus, orders: Iterable[RolloutOrder]) -> None:
    """Send ``orders`` and return when the broker has acknowledged them."""
    with contextlib.closing(sync_clients.create_producer(bus, CLIENT)) as producer:
        sent = []
        for order in orders:
            record = encode(rollout_orders.TOPIC, order, record_id=order.order_id)
            name = bus.prefix + rollout_orders.TOPIC.name
            sent.append(producer.send(name, key=record.key, value=record.value, headers=record.headers))
        try:
            for future in sent:
                future.get(timeout=SEND_TIMEOUT_S)
        except KafkaError as error:
            raise ServiceUnavailable(f"the broker at {bus.servers} did not acknowledge an order: {error}") from None


def read_recorded(bus: Bus, reader: GroupReader) -> list[ReadyGroup]:
    """Return the steps of every recorded demonstration that succeeded, each as a group to imitate.

    Raises :class:`UserError` if there is none on ``trajectories``.
    """
    found: dict[str, Trajectory] = {
        event.order_id: event
        for event in sync_clients.read_events(bus, CLIENT, trajectories.TOPIC)
        if event.purpose == "demonstration" and event.outcome == "success"
    }
    if not found:
        raise UserError(
            f"no demonstration on {bus.prefix}{trajectories.TOPIC.name}: `dart-streams data import SET` with the same "
            "configuration puts them there"
        )
    return [reader.read(sft_group(order_id, [success_of(ended)])) for order_id, ended in found.items()]


def success_of(ended: Trajectory) -> RememberedSuccess:
    """Return a demonstration with all its steps."""
    return RememberedSuccess(
        trajectory_id=ended.trajectory_id, task_id=ended.task_id, selected=list(range(ended.steps))
    )


def gather(
    config: Config, reader: GroupReader, orders: Sequence[RolloutOrder], report: Callable[[int], None]
) -> list[ReadyGroup]:
    """Wait until all ``orders`` have ended; return the steps of each success as a group to imitate, in their order.

    ``report`` is called with the number of ended orders while this waits. Raises :class:`UserError` if none ends for
    ``evaluation.timeout_s``, or no demonstration succeeds.
    """
    pending = {order.order_id for order in orders}
    succeeded: dict[str, ReadyGroup] = {}
    bound_s = config.evaluation.timeout_s
    silence = Deadline(bound_s)
    with sync_clients.TopicReader(config.bus, CLIENT, trajectories.TOPIC) as records:
        while pending:
            for record in records.poll(POLL_TIMEOUT_MS):
                try:
                    ended: Trajectory = decode(trajectories.TOPIC, record.value, record.headers)
                except Undecodable as error:
                    log.warning("not a trajectory", offset=record.offset, reason=str(error))
                    continue
                if ended.order_id in pending:
                    silence = Deadline(bound_s)
                    pending.remove(ended.order_id)
                    if ended.outcome == "success":
                        succeeded[ended.order_id] = reader.read(sft_group(ended.order_id, [success_of(ended)]))
            count = len(orders) - len(pending)
            report(count)
            if silence.expired:
                raise UserError(
                    f"no demonstration finished for {bound_s:g} s ({count} of {len(orders)} did): "
                    f"are an env worker and a recorder running with bus.prefix {config.bus.prefix!r}?"
                )
    if not succeeded:
        raise UserError(f"{len(orders)} demonstrations finished and none succeeded: see the env worker's log")
    return [succeeded[order.order_id] for order in orders if order.order_id in succeeded]
