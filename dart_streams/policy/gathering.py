"""Demonstrations from the topics to samples: the Kafka and Cassandra side of the warm-up.

| consumes | produces | waits for | unblocked by |
|---|---|---|---|
| trajectories | rollout-orders | demonstrations, bounded | an env worker and a recorder on the same prefix |
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

import structlog
from kafka.errors import KafkaError

from dart_streams.bus import sync_clients
from dart_streams.bus.codec import Undecodable, decode, encode
from dart_streams.config import Bus, Config
from dart_streams.errors import ServiceUnavailable, UserError
from dart_streams.policy.demonstrations import SftSample, samples_of
from dart_streams.store import SyncStore
from topics import rollout_orders, trajectories
from topics.rollout_orders import RolloutOrder
from topics.trajectories import Trajectory

POLL_MS = 200
SEND_S = 30.0
CLIENT = "policy-build"

log = structlog.get_logger()


class Gathering:
    """Orders demonstrations and collects their samples in a thread of its own; use it as a context.

    ``finished`` counts the orders that have ended, successful or not.
    """

    def __init__(self, config: Config, store: SyncStore, orders: Sequence[RolloutOrder]) -> None:
        self.config = config
        self.store = store
        self.wanted = {order.order_id: order for order in orders}
        self.finished = 0
        self.heard_s = time.monotonic()
        self._progress = threading.Condition()
        self._stopping = threading.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gathering")
        self._ended: Future[None] | None = None
        self._samples: dict[str, list[SftSample]] = {}

    def __enter__(self) -> Self:
        publish(self.config.bus, self.wanted.values())
        self._ended = self._thread.submit(self._run)
        self._ended.add_done_callback(lambda _: self._notify())
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.shutdown()

    def wait(self, tell: Callable[[], None]) -> list[SftSample]:
        """Return the samples when all orders have ended, in the order of the orders; ``tell`` is called meanwhile.

        Raises
        ------
        UserError
            If nothing was heard for ``evaluation.timeout_s``, or no demonstration succeeds.
        """
        bound_s = self.config.evaluation.timeout_s
        with self._progress:
            while self.finished < len(self.wanted):
                self.check()
                if time.monotonic() - self.heard_s > bound_s:
                    raise UserError(
                        f"no demonstration finished for {bound_s:g} s ({self.finished} of {len(self.wanted)} did): "
                        f"are an env worker and a recorder running with bus.prefix {self.config.bus.prefix!r}?"
                    )
                self._progress.wait(0.5)
                tell()
        self.check()
        if not self._samples:
            raise UserError(f"{self.finished} demonstrations finished and none succeeded: see the env worker's log")
        return [sample for order_id in self.wanted for sample in self._samples.get(order_id, ())]

    def check(self) -> None:
        """Raise what ended the thread before its time, if anything did."""
        if self._ended is not None and self._ended.done():
            self._ended.result()

    def _run(self) -> None:
        with sync_clients.TopicReader(self.config.bus, CLIENT, trajectories.TOPIC) as reader:
            open_orders = set(self.wanted)
            while open_orders and not self._stopping.is_set():
                heard = {t.order_id: t for t in decoded(reader.poll(POLL_MS)) if t.order_id in open_orders}
                if heard:
                    open_orders -= heard.keys()
                    self._take(heard)

    def _take(self, heard: Mapping[str, Trajectory]) -> None:
        policy = self.config.policy
        orders = {t.trajectory_id: order_id for order_id, t in heard.items() if t.outcome == "success"}
        found = self.store.steps_many(list(orders))
        refs = [step.screenshot for steps in found.values() for step in steps if step.screenshot is not None]
        images = self.store.get_blobs(refs)
        for identity, steps in found.items():
            self._samples[orders[identity]] = samples_of(steps, images, policy.max_images, policy.max_texts)
        self.finished += len(heard)
        self.heard_s = time.monotonic()
        self._notify()

    def _notify(self) -> None:
        with self._progress:
            self._progress.notify_all()


def decoded(batch: Iterable[Any]) -> list[Trajectory]:
    """Return the trajectories of Kafka records; what does not decode is the recorder's business, and logged."""
    found = []
    for record in batch:
        try:
            found.append(decode(trajectories.TOPIC, record.value, record.headers))
        except Undecodable as error:
            log.warning("not a trajectory", offset=record.offset, error=str(error))
    return found


def publish(bus: Bus, orders: Iterable[RolloutOrder]) -> None:
    """Send ``orders`` and return when the broker has them."""
    with contextlib.closing(sync_clients.producer(bus, CLIENT)) as producer:
        sent = []
        for order in orders:
            record = encode(rollout_orders.TOPIC, order, record_id=order.order_id)
            name = bus.prefix + rollout_orders.TOPIC.name
            sent.append(producer.send(name, key=record.key, value=record.value, headers=record.headers))
        try:
            for future in sent:
                future.get(timeout=SEND_S)
        except KafkaError as error:
            raise ServiceUnavailable(f"the broker at {bus.servers} did not take an order: {error}") from None
