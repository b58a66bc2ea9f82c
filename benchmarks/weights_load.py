"""Steady load on rollout workers: slots that request actions one after another."""

import asyncio
import itertools
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from aiokafka import AIOKafkaConsumer, TopicPartition

from benchmarks.weight_switch_metrics import Answer
from dart_streams.bus.clients import Publisher, create_consumer, event_of, start_within
from dart_streams.clock import now_ms
from dart_streams.config import Config
from topics import action_requests, actions
from topics.action_requests import ActionRequest
from topics.actions import ActionResponse
from topics.values import MessagePart

PARTITION = 0
"""Partition of the answers."""


class SteadyLoad:
    """Requests while the block runs, then waits for running requests.

    ``failed`` counts error answers and requests without an answer within ``timeout_s``.
    """

    def __init__(
        self,
        config: Config,
        publisher: Publisher,
        prompts: Sequence[Sequence[MessagePart]],
        slots: int,
        timeout_s: float,
    ) -> None:
        self.config = config
        self.publisher = publisher
        self.prompts = itertools.cycle(prompts)
        self.slots = slots
        self.timeout_s = timeout_s
        self.answers: list[Answer] = []
        self.failed = 0
        self.errors: list[str] = []
        self._numbers = itertools.count()
        self._asked: dict[str, asyncio.Future[ActionResponse]] = {}
        self._stopping = False
        self._records: AIOKafkaConsumer = create_consumer(config.bus, group=None, client_id="bench-answers")

    async def __aenter__(self) -> Self:
        await start_within(self._records, self.config.bus)
        place = TopicPartition(self.config.bus.prefix + actions.TOPIC.name, PARTITION)
        self._records.assign([place])
        self._listener = asyncio.create_task(self._listen())
        self._slots = [asyncio.create_task(self._ask_on()) for _ in range(self.slots)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping = True
        try:
            if error is None:
                await asyncio.gather(*self._slots)
        finally:
            for task in (*self._slots, self._listener):
                task.cancel()
            await self._records.stop()

    def check(self) -> None:
        """Raise the error that ended the load early, if any."""
        for task in (*self._slots, self._listener):
            if task.done():
                task.result()

    async def _ask_on(self) -> None:
        while not self._stopping:
            started = time.perf_counter()
            try:
                action = await self._ask()
            except TimeoutError:
                self._fail("no answer in time")
                continue
            if action.error is not None:
                self._fail(action.error)
                continue
            took_ms = (time.perf_counter() - started) * 1000
            self.answers.append(Answer(now_ms(), action.worker_id, len(action.tokens), len(action.versions), took_ms))

    async def _ask(self) -> ActionResponse:
        number = str(next(self._numbers))
        request = ActionRequest(
            request_id=number,
            trajectory_id=number,
            step=0,
            turns=list(next(self.prompts)),
            sampling=self.config.sampling(),
            reply_partition=PARTITION,
            deadline_ms=now_ms() + int(self.timeout_s * 1000),
        )
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self.timeout_s):
                await self.publisher.publish(action_requests.TOPIC, request)
                return await answer
        finally:
            del self._asked[number]

    async def _listen(self) -> None:
        async for record in self._records:
            action: ActionResponse = event_of(actions.TOPIC, record)
            asker = self._asked.get(action.request_id)
            if asker is not None and not asker.done():
                asker.set_result(action)

    def _fail(self, why: str) -> None:
        self.failed += 1
        self.errors.append(why)
