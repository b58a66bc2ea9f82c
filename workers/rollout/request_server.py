"""Serves action requests with the engine, up to ``max_in_flight`` at a time.

A request past its deadline is dropped, also during generation. Its budget is the difference of two times of its host's
clock, and its wait is measured here (:class:`RequestAges`), so clocks may differ by hours. An invalid
request becomes a dead letter; an engine fault becomes the reply's ``error``.
"""

import asyncio
import contextlib
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import structlog
from aiokafka import ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError
from opentelemetry import metrics

from dart_streams.bus.clients import Publisher
from dart_streams.bus.codec import Unencodable
from dart_streams.deadline import Deadline
from dart_streams.errors import MAX_REASON
from dart_streams.telemetry import names
from dart_streams.telemetry.instruments import ObservedCounter, ObservedGauge, create_histogram
from dart_streams.telemetry.spans import ActiveSpan, context_of, process_attributes
from topics import actions
from topics.action_requests import ActionRequest
from topics.actions import ActionResponse
from workers.rollout.engine import Engine, EngineFault, Generation
from workers.runtime.ordered_consumer import Delivery, OrderedConsumer

POLL_INTERVAL_S = 1.0
"""Time between reads of the topic's end offsets while busy: the precision of waits."""
REPORT_INTERVAL_S = 10.0
"""Minimum time between log lines about dropped requests."""

log = structlog.get_logger()
meter = metrics.get_meter(names.METER)
in_flight = ObservedGauge(meter, names.ROLLOUT_IN_FLIGHT)
queue_ms = create_histogram(meter, names.ROLLOUT_QUEUE_MS)
generate_ms = create_histogram(meter, names.ROLLOUT_GENERATE_MS)
blob_read_ms = create_histogram(meter, names.ROLLOUT_BLOB_READ_MS)
tokens = ObservedCounter(meter, names.ROLLOUT_TOKENS)
prompt_tokens = ObservedCounter(meter, names.ROLLOUT_PROMPT_TOKENS)
recalled = ObservedCounter(meter, names.ROLLOUT_RECALLED)
requests = ObservedCounter(meter, names.ROLLOUT_REQUESTS)
EMPTY = Generation(text="", tokens=[], logprobs=[], entropies=[], versions=[], prompt_tokens=0, prompt_sha="")


class RequestServer:
    """Continuous batching of one worker; takes requests only while there is room."""

    def __init__(
        self,
        worker_id: str,
        engine: Engine,
        consumer: OrderedConsumer,
        publisher: Publisher,
        reply_partitions: int,
        max_in_flight: int,
        described: Mapping[str, str],
    ) -> None:
        self.worker_id = worker_id
        self.engine = engine
        self.consumer = consumer
        self.publisher = publisher
        self.reply_partitions = reply_partitions
        self.max_in_flight = max_in_flight
        self.described = described
        """Attributes of every generation's span, such as its model."""
        self.in_flight = 0
        self.ages = RequestAges()
        self.late = LateRequests()

    async def handle(self, _slot: int, delivery: Delivery) -> None:
        """Answer a request, or dead-letter it if no partition can carry the reply."""
        request: ActionRequest = delivery.event
        if not await self._has_partition(request.reply_partition):
            reason = f"reply_partition {request.reply_partition}, but {actions.TOPIC.name} has {self.reply_partitions}"
            await self.consumer.dead_letter(delivery.record, reason)
            return
        record = delivery.record
        waited_s = self.ages.age_s(TopicPartition(record.topic, record.partition), record.offset)
        self._count(+1)
        try:
            await self.answer(request, record, waited_s)
        finally:
            self._count(-1)

    async def _has_partition(self, number: int) -> bool:
        """Return whether a reply can go to a partition; the topic may have grown since it was last described."""
        name = actions.TOPIC.name
        if number >= self.reply_partitions:
            with contextlib.suppress(KafkaError):
                self.reply_partitions = (await self.publisher.partition_counts([name])).get(name, self.reply_partitions)
        return 0 <= number < self.reply_partitions

    def _count(self, change: int) -> None:
        """Count requests in flight; when full, note the end offsets that the client has seen."""
        self.in_flight += change
        in_flight.set(self.in_flight)
        if change > 0 and self.in_flight == self.max_in_flight:
            records = self.consumer.consumer
            seen = {place: records.highwater(place) for place in records.assignment()}
            self.ages.note_ends({place: end for place, end in seen.items() if end is not None})

    async def watch_queue(self) -> None:
        """Note end offsets while full, and report dropped requests, until cancelled."""
        while True:
            await asyncio.sleep(POLL_INTERVAL_S)
            self.late.report()
            records = self.consumer.consumer
            assigned = records.assignment()
            self.ages.keep(assigned)
            if self.in_flight == self.max_in_flight and assigned:
                with contextlib.suppress(KafkaError):
                    self.ages.note_ends(await records.end_offsets(sorted(assigned)))

    async def answer(self, request: ActionRequest, record: ConsumerRecord, waited_s: float) -> None:
        """Generate and reply before the deadline, or drop the request, which has waited ``waited_s``."""
        received_s = time.monotonic()
        left_s = budget_s(request, record) - waited_s
        attributes: dict[str, Any] = {
            **process_attributes(record, f"{self.publisher.bus.prefix}{self.consumer.group}"),
            **self.described,
            names.ATTR_REQUEST: request.request_id,
            names.ATTR_TRAJECTORY: request.trajectory_id,
            names.ATTR_STEP: request.step,
            names.ATTR_HOST: self.worker_id,
        }
        with ActiveSpan(names.SPAN_GENERATE, parent=context_of(record.headers), attributes=attributes) as span:
            try:
                if left_s <= 0:
                    raise TimeoutError
                async with asyncio.timeout(left_s):
                    reply, generation = await self.reply_to(request, received_s - waited_s)
                    span.set_attributes(
                        ATTR_QUEUE_MS=reply.queue_ms,
                        ATTR_FETCH_MS=round(generation.fetch_ms, 3),
                        ATTR_GENERATE_MS=reply.generate_ms,
                        ATTR_PREFILL_MS=round(generation.prefill_ms, 3),
                        ATTR_DECODE_MS=round(max(0.0, reply.generate_ms - generation.prefill_ms), 3),
                        ATTR_TOKENS=len(reply.tokens),
                        ATTR_GEN_INPUT=generation.prompt_tokens,
                        ATTR_GEN_OUTPUT=len(reply.tokens),
                        ATTR_VERSION=reply.versions[-1].version if reply.versions else None,
                    )
                    reply = await self._publish(reply, request.reply_partition)
                    if reply.error:
                        span.set_error(reply.error)
            except TimeoutError:
                span.set_error("past its deadline", TimeoutError.__name__)
                requests.add(1, {"result": "late"})
                self.late.add(request, waited_s, budget_s(request, record))
                return
        requests.add(1, {"result": "failed" if reply.error else "answered"})

    async def _publish(self, reply: ActionResponse, partition: int) -> ActionResponse:
        """Publish a reply, or an error if no record can carry it; return the published reply."""
        try:
            await self.publisher.publish(actions.TOPIC, reply, partition=partition)
        except Unencodable as error:
            log.warning("reply refused", request_id=reply.request_id, tokens=len(reply.tokens), reason=str(error))
            nothing: dict[str, Any] = {"text": "", "tokens": [], "logprobs": [], "entropies": [], "versions": []}
            nothing |= {"prompt_tokens": 0, "prompt_sha": ""}
            reply = msgspec.structs.replace(reply, **nothing, error=str(error)[:MAX_REASON])
            await self.publisher.publish(actions.TOPIC, reply, partition=partition)
        return reply

    async def reply_to(self, request: ActionRequest, queued_s: float) -> tuple[ActionResponse, Generation]:
        """Return the reply to a request queued at a monotonic time, and its generation; a fault becomes ``error``."""
        generation, error, started = EMPTY, None, time.monotonic()
        try:
            with ActiveSpan(names.SPAN_ENGINE, attributes={names.ATTR_REQUEST: request.request_id}):
                generation = await self.engine.generate(request)
        except EngineFault as fault:
            error = str(fault)[:MAX_REASON]
            log.warning("request failed", trajectory=request.trajectory_id, request_id=request.request_id, reason=error)
        took_ms = (time.monotonic() - started) * 1000 - generation.fetch_ms
        queued_ms = (started - queued_s) * 1000
        queue_ms.record(queued_ms)
        generate_ms.record(took_ms)
        blob_read_ms.record(generation.fetch_ms)
        count_tokens(generation)
        reply = ActionResponse(
            request_id=request.request_id,
            trajectory_id=request.trajectory_id,
            step=request.step,
            text=generation.text,
            tokens=generation.tokens,
            logprobs=generation.logprobs,
            entropies=generation.entropies,
            versions=generation.versions,
            prompt_tokens=generation.prompt_tokens,
            prompt_sha=generation.prompt_sha,
            worker_id=self.worker_id,
            queue_ms=round(queued_ms, 3),
            generate_ms=round(took_ms, 3),
            error=error,
        )
        return reply, generation


def count_tokens(generation: Generation) -> None:
    """Count the tokens of a prompt and its answer."""
    tokens.add(len(generation.tokens))
    prompt_tokens.add(generation.prompt_tokens - generation.cached_tokens, {"source": "computed"})
    prompt_tokens.add(generation.cached_tokens, {"source": "cached"})
    if generation.recalled is not None:
        recalled.add(1, {"tokens": generation.recalled})


class LateRequests:
    """Dropped requests, logged at once and then every :data:`REPORT_INTERVAL_S`."""

    def __init__(self) -> None:
        self.count = 0
        self._quiet = Deadline(0.0)
        self._newest: dict[str, Any] = {}

    def add(self, request: ActionRequest, waited_s: float, budget_s: float) -> None:
        """Count a dropped request."""
        self.count += 1
        waits = {"waited_s": round(waited_s, 1), "budget_s": round(budget_s, 1)}
        self._newest = {"newest": request.request_id, **waits}
        self.report()

    def report(self) -> None:
        """Log dropped requests, unless the last line is too recent."""
        if self.count and self._quiet.expired:
            log.warning(
                "requests dropped",
                requests=self.count,
                reason="past their deadlines: too many for the rollout workers, or too slow for env.request_timeout_s",
                **self._newest,
            )
            self.count, self._quiet = 0, Deadline(REPORT_INTERVAL_S)


class RequestAges:
    """End offsets of partitions with the times when they were noted."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends: defaultdict[TopicPartition, deque[tuple[int, float]]] = defaultdict(deque)

    def note_ends(self, ends: Mapping[TopicPartition, int]) -> None:
        """Note end offsets returned by the broker."""
        now_s = self._clock()
        for partition, end in ends.items():
            noted = self._ends[partition]
            if not noted or noted[-1][0] < end:
                noted.append((end, now_s))

    def age_s(self, partition: TopicPartition, offset: int) -> float:
        """Return the minimum age of a record (seconds); ask in ascending order of offsets."""
        noted = self._ends[partition]
        while noted and noted[0][0] <= offset:
            noted.popleft()
        return self._clock() - noted[0][1] if noted else 0.0

    def keep(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget all other partitions."""
        assigned = set(partitions)
        for partition in [partition for partition in self._ends if partition not in assigned]:
            del self._ends[partition]


def budget_s(request: ActionRequest, record: ConsumerRecord) -> float:
    """Return how long the env host waits for the reply after sending (seconds); both times are of its clock."""
    return (request.deadline_ms - record.timestamp) / 1000
