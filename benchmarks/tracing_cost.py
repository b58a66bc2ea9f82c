"""What tracing costs: ``dart-streams bench tracing``.

An environment worker, a rollout worker (scripted answers without latency) and a recorder play in one process as fast
as its processor lets them, over a real broker and database: the worst case, since their steps cost nothing but what
has to do with events: there is no browser and no model.

Throughput is steps a second of the circle's CPU time: of this process, all of its threads included, and of the broker
and the database where they are on this machine. That is what tracing takes away, and unlike the clock it does not
depend on who else uses the processors. A turn plays a number of episodes from their orders until all are recorded and
their spans written, so that a turn's work is the same to the step. Every round each ratio has its turn, in an order
that is turned round every round, so that what else the machine does meets all alike. A ratio's cost is the median, over
rounds, of its throughput divided by that without tracing in the same round; its interval is the 95 % one of that
median, by resampling rounds.

That interval is some percent wide on a busy machine, wider than what it is to show. So each turn is followed by the
spans and record headers of as many steps alone, without a circle: what they take more than without tracing, divided by
the circle's CPU time a step, is the share of throughput that spans cost, and busy neighbours slow both down alike.
"""

import asyncio
import contextlib
import gc
import importlib
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

from benchmarks.tracing_spans import STEPS, spans_alone
from dart_streams.bus import admin
from dart_streams.bus.clients import Publisher, consumer, start_within
from dart_streams.bus.codec import encode
from dart_streams.config import Bus, Config, parse
from dart_streams.errors import ServiceUnavailable
from dart_streams.telemetry import setup
from topics import Topic, observations, rollout_orders, trajectories, weights
from topics.rollout_orders import RolloutOrder
from topics.values import Sampling
from topics.weights import WeightVersion

RATIOS = (None, 0.0, 0.1, 1.0)
"""None: no tracing at all. At 0.0 only what fails is written, but contexts travel."""
RESAMPLED = 2000
PAGE = {
    "environment": "simulated",
    "page": f"steps-{STEPS}",
    "max_steps": 6,
    "train_seeds": [0, 50],
    "heldout_seeds": [100, 101],
}
BOUND_S = 120.0
"""How long a turn may take, the first of which waits for the workers to start."""
LOOK_S = 0.05
"""How often is looked whether a turn is over."""


def configuration(folder: Path, servers: str, store_port: int) -> Config:
    """Write the task set of a deployment of its own and return its configuration."""
    (folder / "tasks.toml").write_text(tomli_w.dumps({"pages": [PAGE]}))
    run = f"bench-{uuid.uuid4().hex[:8]}"
    return parse(
        {
            "run": {"id": run, "state_dir": str(folder), "drain_s": 2.0},
            "bus": {"servers": servers, "prefix": f"{run}."},
            "store": {"port": store_port, "keyspace": "dart_bench"},
            "tasks": {"file": str(folder / "tasks.toml")},
            "env": {
                "backend": "simulated",
                "slots": 16,
                "simulated": {"reset_ms": 0.1, "step_ms": 0.1, "evaluate_ms": 0.1},
            },
            "rollout": {"engine": "scripted", "scripted": {"latency_ms": 0.1, "success_rate": 1.0}},
            "telemetry": {"sampling": 1.0},
        }
    )


async def measure(folder: Path, servers: str, store_port: int, rounds: int, episodes: int) -> dict[str, Any]:
    """Play with each ratio in turn, ``rounds`` times, and return the figures."""
    config = configuration(folder, servers, store_port)
    await asyncio.to_thread(admin.apply_all, config.bus)
    setup.start(config, "bench")
    services = listening(store_port, *(int(server.rpartition(":")[2]) for server in servers.split(",")))
    made: dict[float | None, list[float]] = {ratio: [] for ratio in RATIOS}
    alone: dict[float | None, list[float]] = {ratio: [] for ratio in RATIOS}
    async with playing(config) as circle:
        for ratio in RATIOS:
            await turn(circle, ratio, episodes, services)
        for number in range(rounds):
            for ratio in RATIOS if number % 2 else RATIOS[::-1]:
                made[ratio].append(await turn(circle, ratio, episodes, services))
                alone[ratio].append(spans_alone(ratio))
    setup.stop()
    step_us = 1e6 / statistics.median(made[None])
    return {
        "rounds": rounds,
        "episodes": episodes,
        "services": sorted(service.name() for service in services),
        "cpu_us_a_step": {label(ratio): round(1e6 / statistics.median(values)) for ratio, values in made.items()},
        "throughput_to_none": {label(ratio): compared(made[ratio], made[None]) for ratio in RATIOS[1:]},
        "spans_alone_us_a_step": {label(ratio): round(statistics.median(values), 1) for ratio, values in alone.items()},
        "throughput_to_none_by_spans_alone": {
            label(ratio): compared_alone(alone[ratio], alone[None], step_us) for ratio in RATIOS[1:]
        },
        "spans_written": sum(1 for path in (config.run.folder / "traces").glob("*") for _ in path.open("rb")),
    }


def label(ratio: float | None) -> str:
    """Return what a ratio is called."""
    return "none" if ratio is None else str(ratio)


def compared(traced: Sequence[float], none: Sequence[float]) -> dict[str, Any]:
    """Return the median of the ratios of pairs, and its 95 % interval by resampling them."""
    return estimated([one / other for one, other in zip(traced, none, strict=True)])


def compared_alone(traced: Sequence[float], none: Sequence[float], step_us: float) -> dict[str, Any]:
    """Return the same from microseconds a step of spans alone, where a step takes ``step_us`` without them."""
    return estimated([step_us / (step_us + one - other) for one, other in zip(traced, none, strict=True)])


def estimated(values: Sequence[float]) -> dict[str, Any]:
    """Return the median of values, and its 95 % interval by resampling them."""
    drawn = random.Random(0)
    medians = sorted(statistics.median(drawn.choices(values, k=len(values))) for _ in range(RESAMPLED))
    return {
        "median": round(statistics.median(values), 4),
        "interval": [round(medians[RESAMPLED * 25 // 1000], 4), round(medians[RESAMPLED * 975 // 1000], 4)],
    }


class TracedCircle:
    """Three workers under way: orders go in, and what is recorded of them is counted."""

    def __init__(self, bus: Bus, publisher: Publisher, records: AIOKafkaConsumer) -> None:
        self.bus = bus
        self.publisher = publisher
        self.records = records
        self.ordered = 0
        self.workers: list[asyncio.Task[Any]] = []

    async def count(self, topic: Topic) -> int:
        """Return how many records a topic has had."""
        partitions = range(await self.publisher.partitions_of(topic))
        places = [TopicPartition(self.bus.prefix + topic.name, number) for number in partitions]
        return sum((await self.records.end_offsets(places)).values())

    async def play(self, episodes: int) -> None:
        """Play so many episodes; raise what ended a worker instead, or :class:`ServiceUnavailable` if they hang."""
        numbers = range(self.ordered, self.ordered + episodes)
        self.ordered += episodes
        name = rollout_orders.TOPIC.name
        await self.publisher.send_all(name, [encode(rollout_orders.TOPIC, order(number)) for number in numbers])
        deadline = time.monotonic() + BOUND_S
        while await self.count(trajectories.TOPIC) < self.ordered:
            for worker in self.workers:
                if worker.done():
                    worker.result()
            if time.monotonic() > deadline:
                raise ServiceUnavailable(f"{episodes} episodes were not played within {BOUND_S:g} s")
            await asyncio.sleep(LOOK_S)


def listening(*ports: int) -> list[psutil.Process]:
    """Return the processes of this machine that listen on these ports."""
    found = {
        at.pid for at in psutil.net_connections("tcp") if at.status == psutil.CONN_LISTEN and at.laddr.port in ports
    }
    return [psutil.Process(pid) for pid in found if pid]


def spent_s(services: Sequence[psutil.Process]) -> float:
    """Return the CPU time of this process and of the services, so far."""
    times = [service.cpu_times() for service in services]
    return time.process_time() + sum(each.user + each.system for each in times)


async def turn(circle: TracedCircle, ratio: float | None, episodes: int, services: Sequence[psutil.Process]) -> float:
    """Play with this ratio; return the steps a second of CPU time."""
    setup.sample(ratio)
    gc.collect()
    before, cpu_s = await circle.count(observations.TOPIC), spent_s(services)
    await circle.play(episodes)
    setup.flush()
    cpu_s = spent_s(services) - cpu_s
    return (await circle.count(observations.TOPIC) - before - episodes) / cpu_s


@contextlib.asynccontextmanager
async def playing(config: Config) -> AsyncIterator[TracedCircle]:
    """Yield a circle of three workers; they are named, for this part may not import them."""
    env, rollout, recorder = (
        importlib.import_module(f"workers.{name}.main") for name in ("env", "rollout", "recorder")
    )
    stop = asyncio.Event()
    records = consumer(config.bus, group=None, client_id="bench")
    async with Publisher(config.bus, "bench") as publisher:
        await start_within(records, config.bus)
        await publisher.publish(weights.TOPIC, first_version(config))
        circle = TracedCircle(config.bus, publisher, records)
        circle.workers = [
            asyncio.create_task(env.live(config, "env-0", stop)),
            asyncio.create_task(rollout.live(config, "rollout-0", rollout.engine_of(config), stop)),
            asyncio.create_task(recorder.live(config, "recorder-0", stop)),
        ]
        try:
            yield circle
        finally:
            stop.set()
            await asyncio.wait(circle.workers, timeout=config.run.drain_s + 10)
            for worker in circle.workers:
                worker.cancel()
            await asyncio.gather(*circle.workers, return_exceptions=True)
            await records.stop()


def order(number: int) -> RolloutOrder:
    """Return an order of its own."""
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


def first_version(config: Config) -> WeightVersion:
    """Return what the scripted engine serves."""
    return WeightVersion(
        model_id=config.policy.model_id,
        version=0,
        uri="file:///none",
        sha256="",
        train_step=0,
        epoch=1,
        groups_consumed=0,
    )
