"""The desk: takes action requests from the topic, at most ``max_in_flight`` at a time, and replies to each.

A request past its deadline is dropped, also in the middle of its generation; a record that is no request becomes a
dead letter; a fault of the engine becomes the reply's ``error``.
"""

import asyncio
import time
from typing import Any

import structlog
from aiokafka import ConsumerRecord
from opentelemetry import metrics

from dart_streams.bus import dead_letters
from dart_streams.bus.clients import Publisher, event_of
from dart_streams.bus.codec import Undecodable
from dart_streams.clock import now_ms
from dart_streams.telemetry import names
from dart_streams.telemetry.instruments import ObservedCounter, ObservedGauge
from dart_streams.telemetry.propagation import context_of
from dart_streams.telemetry.spans import ActiveSpan
from topics import action_requests, actions
from topics.action_requests import ActionRequest
from topics.actions import ActionResponse
from workers.rollout.engine import Engine, EngineFault, Generation
from workers.rollout.request_consumer import RequestConsumer

log = structlog.get_logger()
meter = metrics.get_meter(names.METER)
in_flight = ObservedGauge(meter, names.ROLLOUT_IN_FLIGHT)
queue_ms = meter.create_histogram(names.ROLLOUT_QUEUE_MS, "ms")
generate_ms = meter.create_histogram(names.ROLLOUT_GENERATE_MS, "ms")
blob_read_ms = meter.create_histogram(names.ROLLOUT_BLOB_READ_MS, "ms")
tokens = ObservedCounter(meter, names.ROLLOUT_TOKENS)
requests = ObservedCounter(meter, names.ROLLOUT_REQUESTS)
NOTHING = Generation(text="", tokens=[], logprobs=[], entropies=[], versions=[], prompt_tokens=0, prompt_sha="")


class RequestServer:
    """One worker's continuous batching: pulls requests only while there is room, and never waits for a batch."""

    def __init__(
        self,
        worker_id: str,
        engine: Engine,
        intake: RequestConsumer,
        publisher: Publisher,
        reply_partitions: int,
        max_in_flight: int,
    ) -> None:
        self.worker_id = worker_id
        self.engine = engine
        self.intake = intake
        self.publisher = publisher
        self.reply_partitions = reply_partitions
        self.max_in_flight = max_in_flight
        self.in_flight = 0
        self.freed = asyncio.Event()
        self.full_ms = (0, 0)

    async def serve(self, stop: asyncio.Event, drain_s: float) -> None:
        """Answer requests until ``stop`` is set, and then those already taken, within ``drain_s``.

        What ends one answer, such as a broker that is away for too long, ends them all and is raised as it is.
        """
        try:
            async with asyncio.timeout(None) as bound, asyncio.TaskGroup() as answers:
                while not stop.is_set():
                    await self.room()
                    for record in await self.intake.take(self.max_in_flight - self.in_flight):
                        self.occupy(+1)
                        answers.create_task(self.handle(record, time.monotonic()))
                bound.reschedule(asyncio.get_running_loop().time() + drain_s)
        except TimeoutError:
            log.warning("drain cut short", bound_s=drain_s, unanswered=self.in_flight)
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def room(self) -> None:
        """Return when fewer than ``max_in_flight`` requests are under way."""
        since_ms = now_ms()
        while self.in_flight >= self.max_in_flight:
            self.freed.clear()
            await self.freed.wait()
            self.full_ms = (since_ms, now_ms())

    def occupy(self, change: int) -> None:
        """Count requests under way."""
        self.in_flight += change
        in_flight.set(self.in_flight)
        self.freed.set()

    async def handle(self, record: ConsumerRecord, received: float) -> None:
        """Answer one record ``received`` at this monotonic time; put it aside, with the reason, if that cannot be."""
        try:
            request = self.request_of(record)
        except Undecodable as why:
            await dead_letters.send(self.publisher, action_requests.TOPIC, record, str(why))
        else:
            await self.answer(request, record, received)
        self.intake.finish(record)
        self.occupy(-1)

    def request_of(self, record: ConsumerRecord) -> ActionRequest:
        """Decode a record; raise :class:`~dart_streams.bus.codec.Undecodable` if nobody could be answered."""
        request: ActionRequest = event_of(action_requests.TOPIC, record)
        if not 0 <= request.reply_partition < self.reply_partitions:
            raise Undecodable(
                f"reply_partition {request.reply_partition}, but {actions.TOPIC.name} has {self.reply_partitions}"
            )
        return request

    async def answer(self, request: ActionRequest, record: ConsumerRecord, received: float) -> None:
        """Generate and reply before the deadline, or drop the request: nobody waits for it any more."""
        left_ms = request.deadline_ms - now_ms()
        waited_ms = overlap_ms((record.timestamp, now_ms()), self.full_ms)
        attributes: dict[str, Any] = {
            names.ATTR_REQUEST: request.request_id,
            names.ATTR_TRAJECTORY: request.trajectory_id,
            names.ATTR_STEP: request.step,
            names.ATTR_HOST: self.worker_id,
        }
        with ActiveSpan(names.SPAN_GENERATE, parent=context_of(record.headers), attributes=attributes) as span:
            try:
                if left_ms <= 0:
                    raise TimeoutError
                async with asyncio.timeout(left_ms / 1000):
                    reply, made = await self.reply_to(request, received - waited_ms / 1000)
                    span.set_attributes(
                        ATTR_QUEUE_MS=reply.queue_ms,
                        ATTR_FETCH_MS=round(made.fetch_ms, 3),
                        ATTR_GENERATE_MS=reply.generate_ms,
                        ATTR_PREFILL_MS=round(made.prefill_ms, 3),
                        ATTR_DECODE_MS=round(max(0.0, reply.generate_ms - made.prefill_ms), 3),
                        ATTR_TOKENS=len(reply.tokens),
                        ATTR_VERSION=reply.versions[-1].version if reply.versions else None,
                    )
                    if reply.error:
                        span.set_error(reply.error)
                    await self.publisher.publish(actions.TOPIC, reply, partition=request.reply_partition)
            except TimeoutError:
                span.set_error("past its deadline")
                requests.add(1, {"result": "late"})
                return
        requests.add(1, {"result": "failed" if reply.error else "answered"})

    async def reply_to(self, request: ActionRequest, arrived: float) -> tuple[ActionResponse, Generation]:
        """Return the reply to a request that ``arrived`` at this monotonic time, and what the engine made.

        A fault of the engine becomes the reply's ``error``.
        """
        made, error, started = NOTHING, None, time.monotonic()
        try:
            made = await self.engine.generate(request)
        except EngineFault as fault:
            error = str(fault)
            log.warning(
                "request failed", trajectory=request.trajectory_id, request_id=request.request_id, because=error
            )
        took_ms = (time.monotonic() - started) * 1000 - made.fetch_ms
        queued_ms = (started - arrived) * 1000
        queue_ms.record(queued_ms)
        generate_ms.record(took_ms)
        blob_read_ms.record(made.fetch_ms)
        tokens.add(len(made.tokens))
        reply = ActionResponse(
            request_id=request.request_id,
            trajectory_id=request.trajectory_id,
            step=request.step,
            text=made.text,
            tokens=made.tokens,
            logprobs=made.logprobs,
            entropies=made.entropies,
            versions=made.versions,
            prompt_tokens=made.prompt_tokens,
            prompt_sha=made.prompt_sha,
            worker_id=self.worker_id,
            queue_ms=round(queued_ms, 3),
            generate_ms=round(took_ms, 3),
            error=error,
        )
        return reply, made


def overlap_ms(one: tuple[int, int], other: tuple[int, int]) -> int:
    """Return how long two spans of time (begin, end; milliseconds) overlap."""
    return max(0, min(one[1], other[1]) - max(one[0], other[0]))
