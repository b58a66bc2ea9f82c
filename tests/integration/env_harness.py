"""An environment worker and the rest of its circle: orders, answers to requests, and the observations."""

import asyncio
import contextlib
import re
import subprocess
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec

from dart_streams.bus.clients import Publisher, create_consumer, event_of, start_within
from dart_streams.config import Config
from tests import events
from tests.task_files import write_tasks
from tests.worker_runs import running_worker, worker_process
from topics import Topic, action_requests, actions, observations, rollout_orders
from topics.action_requests import ActionRequest
from topics.observations import Observation
from topics.rollout_orders import RolloutOrder
from topics.values import Sampling, VersionSpan
from workers.env.main import connect as connect_worker

BOUND_S = 120.0
QUICK = {"reset_ms": 1, "step_ms": 1, "evaluate_ms": 1}
POINT = re.compile(r"\((\d+),(\d+)\)")

Answer = Callable[[ActionRequest], str | None]


def solve(request: ActionRequest) -> str:
    """Click where the instruction says."""
    x, y = POINT.findall(" ".join(turn.text or "" for turn in request.turns))[0]
    return f"Action: click(start_box='({x},{y})')"


def number_of(request: ActionRequest) -> int:
    """Return the number of the request's order, which its sampling carries."""
    return request.sampling.max_tokens - 1


def order(number: int, task: str = "simulated/box#0", **fields) -> RolloutOrder:
    fields = {"sampling": Sampling(max_tokens=number + 1)} | fields
    return events.rollout_order(f"o{number}", task_id=task, **fields)


class Harness:
    """The rest of the circle: it orders, answers requests, and collects the observations."""

    def __init__(self, config: Config, answer: Answer) -> None:
        self.config = config
        self.answer = answer
        self.publisher = Publisher(config.bus, "test")
        self.requests: list[ActionRequest] = []
        self.observed: defaultdict[str, list[Observation]] = defaultdict(list)
        self.changed = asyncio.Condition()

    @property
    def ended(self) -> dict[str, list[Observation]]:
        """The last observations of ended trajectories, by order."""
        ends: defaultdict[str, list[Observation]] = defaultdict(list)
        for trajectory in self.observed.values():
            if trajectory[-1].end is not None:
                ends[trajectory[-1].order.order_id].append(trajectory[-1])
        return ends

    def outcome(self, number: int) -> str:
        return "/".join(last.end.kind for last in self.ended[f"o{number}"])

    async def order(self, *orders: RolloutOrder) -> None:
        for event in orders:
            await self.publisher.publish(rollout_orders.TOPIC, event)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(BOUND_S), self.changed:
            await self.changed.wait_for(condition)

    async def serve(self) -> None:
        async for topic, event in self.read(action_requests.TOPIC, observations.TOPIC):
            if topic is observations.TOPIC:
                self.observed[event.trajectory_id].append(event)
            else:
                self.requests.append(event)
                await self.reply(event)
            async with self.changed:
                self.changed.notify_all()

    async def read(self, *topics: Topic) -> AsyncIterator[tuple[Topic, msgspec.Struct]]:
        member = {"group": f"test-{uuid.uuid4().hex}", "session_timeout_ms": 60_000}  # A new one reads all again.
        records = create_consumer(self.config.bus, *topics, client_id="test", **member)
        await start_within(records, self.config.bus)
        try:
            async for record in records:
                topic = next(t for t in topics if record.topic == self.config.bus.prefix + t.name)
                yield topic, event_of(topic, record)
        finally:
            await records.stop()

    async def reply(self, request: ActionRequest) -> None:
        text = self.answer(request)
        if text is not None:
            await self.respond(request, text)

    async def respond(self, request: ActionRequest, text: str, error: str | None = None) -> None:
        action = events.action_response(
            text,
            to=request,
            tokens=[1, 2],
            logprobs=[-0.1, -0.2],
            entropies=[0.3, 0.4],
            versions=[VersionSpan(version=0, start=0, end=2)],
            error=error,
        )
        await self.publisher.publish(actions.TOPIC, action, partition=request.reply_partition)


@contextlib.asynccontextmanager
async def serving(harness: Harness) -> AsyncIterator[Harness]:
    async with harness.publisher:
        task = asyncio.create_task(harness.serve())
        try:
            yield harness
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def harness_of(config: Config, answer: Answer = solve) -> contextlib.AbstractAsyncContextManager[Harness]:
    return serving(Harness(config, answer))


def worker(config: Config, name: str = "env-0") -> contextlib.AbstractAsyncContextManager[asyncio.Task[int]]:
    """Return an environment worker in this process."""
    return running_worker(connect_worker, config, name)


async def played(config: Config, *orders: RolloutOrder, answer: Answer = solve) -> Harness:
    """Let one worker play orders, and return their circle."""
    async with harness_of(config, answer) as harness, worker(config):
        await harness.order(*orders)
        await harness.until(lambda: len(harness.ended) == len(orders))
    return harness


def process(
    config: Config, folder: Path, log: Path | None = None, disturbed: str = ""
) -> "contextlib.AbstractContextManager[subprocess.Popen[str]]":
    """Return an environment worker as a process."""
    return worker_process("env", config, folder, log, disturbed)


def played_config(services: Any, folder: Path, **env: Any) -> Config:
    """Return a configuration of a worker that plays simulated pages."""
    simulated = QUICK | env.pop("simulated", {})
    return services.config(
        env={"backend": "simulated", "slots": 4, "simulated": simulated} | env,
        tasks=write_tasks(folder, "box", "steps-3"),
        run={"drain_s": 6, "state_dir": str(folder)},
    )
