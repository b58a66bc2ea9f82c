"""Cost of tracing: ``dart-streams bench tracing``.

An environment worker, a rollout worker (scripted answers) and a recorder play in one process over a real Kafka and
Cassandra. Without browser and model a step costs least, so the share of its spans is the largest.

Turns without and with spans of every trajectory alternate, in an order that is reversed each round. ``circle`` is the
CPU time of a step with spans, divided by that without in the same round: of this process, the broker and the database.
On a shared machine its interval is wider than a percent. So the same spans, and those of agents and trainer, are also
made alone after each turn; ``spans`` is their additional CPU time, divided by that of the circle's step.
"""

import asyncio
import contextlib
import functools
import gc
import random
import statistics
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import tomli_w
from aiokafka import AIOKafkaConsumer, TopicPartition

from benchmarks.private_services import private_services
from benchmarks.stand_in_trainer import version_of
from benchmarks.tracing_spans import STEPS, flush, spans_alone
from dart_streams.bus import admin
from dart_streams.bus.clients import Publisher, create_consumer, start_within
from dart_streams.bus.codec import encode
from dart_streams.config import Config, parse
from dart_streams.errors import ServiceUnavailable
from dart_streams.store import create_schema
from dart_streams.telemetry import setup, spans
from topics import Topic, observations, rollout_orders, trajectories, weights
from topics.rollout_orders import RolloutOrder
from topics.values import Sampling
from workers.env import main as env
from workers.recorder import main as recorder
from workers.rollout import main as rollout
from workers.runtime.lifecycle import Connect, run_until_stopped

ARMS = (None, 1.0)
"""Ratios: without spans, and with those of every trajectory."""
RESAMPLED = 2000
BOUND_S = 120.0
"""Time that a turn may take, the first of which waits for the workers."""
PAGE = {
    "environment": "simulated",
    "page": f"steps-{STEPS}",
    "max_steps": 6,
    "train_seeds": [0, 50],
    "heldout_seeds": [100, 101],
}


def bench_config(folder: Path, running: Config) -> Config:
    """Write a task set and return the configuration of a run on the services of ``running``."""
    (folder / "tasks.toml").write_text(tomli_w.dumps({"pages": [PAGE]}), encoding="utf-8")
    run = f"bench-{uuid.uuid4().hex[:8]}"
    simulated = {"reset_ms": 0.1, "step_ms": 0.1, "evaluate_ms": 0.1}
    return parse(
        {
            "run": {"id": run, "state_dir": str(folder), "drain_s": 2.0},
            "bus": {"servers": running.bus.servers, "prefix": f"{run}."},
            "store": {"port": running.store.port, "keyspace": run.replace("-", "_")},
            "tasks": {"file": str(folder / "tasks.toml")},
            "env": {"backend": "simulated", "slots": 16, "simulated": simulated},
            "rollout": {"engine": "scripted", "scripted": {"latency_ms": 0.1, "success_rate": 1.0}},
        }
    )


class Circle:
    """Three workers under way: orders go in, and their trajectories are counted."""

    def __init__(self, config: Config, publisher: Publisher, records: AIOKafkaConsumer) -> None:
        self.config = config
        self.publisher = publisher
        self.records = records
        self.ordered = 0
        ports = {config.store.port, *(int(one.rpartition(":")[2]) for one in config.bus.servers.split(","))}
        self.services = [
            psutil.Process(pid)
            for pid in {
                at.pid
                for at in psutil.net_connections("tcp")
                if at.status == psutil.CONN_LISTEN and at.laddr.port in ports
            }
            if pid
        ]

    async def count(self, topic: Topic) -> int:
        """Return the number of records of a topic."""
        numbers = range(await self.publisher.partitions_of(topic))
        places = [TopicPartition(self.config.bus.prefix + topic.name, number) for number in numbers]
        return sum((await self.records.end_offsets(places)).values())

    async def play(self, episodes: int, workers: Sequence[asyncio.Task[int]]) -> None:
        """Play episodes until all are recorded; raise what ended a worker, or :class:`ServiceUnavailable`."""
        numbers = range(self.ordered, self.ordered + episodes)
        self.ordered += episodes
        orders = [encode(rollout_orders.TOPIC, order_of(number)) for number in numbers]
        await self.publisher.send_all(rollout_orders.TOPIC.name, orders)
        deadline = time.monotonic() + BOUND_S
        while await self.count(trajectories.TOPIC) < self.ordered:
            for worker in workers:
                if worker.done():
                    worker.result()
            if time.monotonic() > deadline:
                raise ServiceUnavailable(f"{episodes} episodes were not played within {BOUND_S:g} s")
            await asyncio.sleep(0.05)

    def spent_s(self) -> float:
        """Return the CPU time of this process and of the services, so far."""
        times = [service.cpu_times() for service in self.services]
        return time.process_time() + sum(each.user + each.system for each in times)

    async def turn(self, ratio: float | None, episodes: int, workers: Sequence[asyncio.Task[int]]) -> float:
        """Play with this ratio; return the CPU time of a step in microseconds."""
        setup.sample(ratio)
        gc.collect()
        before, spent_s = await self.count(observations.TOPIC), self.spent_s()
        await self.play(episodes, workers)
        flush()
        steps = await self.count(observations.TOPIC) - before - episodes
        return 1e6 * (self.spent_s() - spent_s) / steps


def order_of(number: int) -> RolloutOrder:
    """Return an order of its own group."""
    return RolloutOrder(
        order_id=f"g{number:06d}/0/0",
        group_id=f"g{number:06d}",
        group_size=1,
        sample=0,
        attempt=0,
        task_id=f"simulated/{PAGE['page']}#{number % 50}",
        max_steps=6,
        purpose="train",
        sampling=Sampling(),
        after_version=0,
    )


@contextlib.asynccontextmanager
async def running_circle(config: Config) -> AsyncIterator[tuple[Circle, list[asyncio.Task[int]]]]:
    """Yield a circle and its workers."""
    stop = asyncio.Event()
    records = create_consumer(config.bus, group=None, client_id="bench")
    connects: dict[str, Connect] = {
        "env-0": env.connect,
        "rollout-0": functools.partial(rollout.connect, engine=rollout.engine_of(config)),
        "recorder-0": recorder.connect,
    }
    async with Publisher(config.bus, "bench") as publisher:
        await start_within(records, config.bus)
        await publisher.publish(weights.TOPIC, version_of(config, 0, 0, 1))
        workers = [
            asyncio.create_task(run_until_stopped(connect, config, name, stop)) for name, connect in connects.items()
        ]
        try:
            yield Circle(config, publisher, records), workers
        finally:
            stop.set()
            await asyncio.wait(workers, timeout=config.run.drain_s + 10)
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            await records.stop()


def measure(folder: Path, rounds: int, episodes: int) -> dict[str, Any]:
    """Start a Kafka and a Cassandra, and return the figures of ``rounds``."""
    with private_services() as running:
        config = bench_config(folder, running)
        admin.apply_all(config.bus)
        create_schema(config.store)
        setup.start(config, "bench")
        spans.Tracing.rate = spans.TraceRate(1e9)
        try:
            return asyncio.run(compare(config, rounds, episodes))
        finally:
            setup.stop()


async def compare(config: Config, rounds: int, episodes: int) -> dict[str, Any]:
    """Play each arm in each round; return what a step costs, and the ratios with their intervals."""
    circle_us: dict[float | None, list[float]] = {ratio: [] for ratio in ARMS}
    alone_us: dict[float | None, list[float]] = {ratio: [] for ratio in ARMS}
    async with running_circle(config) as (circle, workers):
        for ratio in ARMS * 2:
            await circle.turn(ratio, episodes, workers)
        for number in range(rounds):
            for ratio in ARMS if number % 2 else ARMS[::-1]:
                circle_us[ratio].append(await circle.turn(ratio, episodes, workers))
                alone_us[ratio].append(spans_alone(ratio))
    step_us = statistics.median(circle_us[None])
    pairs = zip(circle_us[1.0], circle_us[None], strict=True)
    added = [one - other for one, other in zip(alone_us[1.0], alone_us[None], strict=True)]
    return {
        "rounds": rounds,
        "episodes": episodes,
        "services": sorted(service.name() for service in circle.services),
        "step_us": round(step_us),
        "spans_us": median_of(added),
        "circle": median_of([one / other for one, other in pairs]),
        "spans": median_of([(step_us + one) / step_us for one in added]),
    }


def median_of(values: Sequence[float]) -> dict[str, Any]:
    """Return the median of values, and its 95 % interval by resampling them."""
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(RESAMPLED))
    bounds = medians[RESAMPLED * 25 // 1000], medians[RESAMPLED * 975 // 1000]
    return {"median": round(statistics.median(values), 4), "interval": [round(bound, 4) for bound in bounds]}
