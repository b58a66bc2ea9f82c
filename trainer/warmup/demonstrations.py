"""Demonstrations of the warm-up: ordered, awaited, read as samples. Without torch.

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
    """Return orders of up to ``count`` demonstrations of distinct tasks, shuffled by ``seed``."""
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
    """Send ``orders``; return when the broker has acknowledged them."""
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
    """Return each recorded successful demonstration as a group; raise :class:`UserError` if there is none."""
    successes: dict[str, Trajectory] = {
        event.order_id: event
        for event in sync_clients.read_events(bus, CLIENT, trajectories.TOPIC)
        if event.purpose == "demonstration" and event.outcome == "success"
    }
    if not successes:
        raise UserError(
            f"no demonstration on {bus.prefix}{trajectories.TOPIC.name}: import them with `dart-streams data import "
            "SET` and the same configuration"
        )
    return [read_success(reader, ended) for ended in successes.values()]


def read_success(reader: GroupReader, ended: Trajectory) -> ReadyGroup:
    """Return a demonstration, with all its steps, as a group to imitate."""
    selected = list(range(ended.steps))
    success = RememberedSuccess(trajectory_id=ended.trajectory_id, task_id=ended.task_id, selected=selected)
    return reader.read(sft_group(ended.order_id, [success]))


def gather(
    config: Config, reader: GroupReader, orders: Sequence[RolloutOrder], report: Callable[[int], None]
) -> list[ReadyGroup]:
    """Wait for all ``orders``; return each success as a group. Raises :class:`UserError` on a timeout or no success."""
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
                    log.warning("trajectory not decodable", offset=record.offset, reason=str(error))
                    continue
                if ended.order_id in pending:
                    silence = Deadline(bound_s)
                    pending.remove(ended.order_id)
                    if ended.outcome == "success":
                        succeeded[ended.order_id] = read_success(reader, ended)
            count = len(orders) - len(pending)
            report(count)
            if silence.expired:
                raise UserError(
                    f"no demonstration finished within {bound_s:g} s ({count} of {len(orders)} did): check that an env "
                    f"worker and a recorder run with bus.prefix {config.bus.prefix!r}"
                )
    if not succeeded:
        raise UserError(f"{len(orders)} demonstrations finished and none succeeded: see the env worker's log")
    return [succeeded[order.order_id] for order in orders if order.order_id in succeeded]
