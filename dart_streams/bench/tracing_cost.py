"""What tracing costs: ``dart-streams bench tracing``.

An environment worker, a rollout worker (scripted answers without latency) and a recorder play in one process as fast
as its processor lets them, over a real broker and database: the worst case, since in a real circle they wait for the
model, the browser or the disk. Throughput is observations a second of this process's CPU time, all of its threads
included: that is what tracing takes away, and unlike the clock it does not depend on who else uses the processors.

Tracing changes every block, in an order that is turned round every round, so that what else the machine does meets
all alike; spans are written out before a block is over. A ratio's cost is the median, over rounds, of its throughput
divided by that without tracing in the same round; its interval is the 95 % one of that median, by resampling rounds.
"""

import asyncio
import contextlib
import importlib
import random
import statistics
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from aiokafka import AIOKafkaConsumer, TopicPartition

from dart_streams.bus import admin
from dart_streams.bus.clients import Publisher, consumer, start_within
from dart_streams.config import Config, parse
from dart_streams.errors import ServiceUnavailable
from dart_streams.telemetry import setup
from topics import observations, rollout_orders, weights
from topics.rollout_orders import RolloutOrder
from topics.values import Sampling
from topics.weights import WeightVersion

RATIOS = (None, 0.0, 0.1, 1.0)
"""None: no tracing at all. At 0.0 only what fails is written, but contexts travel."""
SETTLE_S = 0.2
"""After a change of the ratio: what began with the other one ends."""
RESAMPLED = 2000
PAGE = {
    "environment": "simulated",
    "page": "steps-3",
    "max_steps": 6,
    "train_seeds": [0, 50],
    "heldout_seeds": [100, 101],
}
BOUND_S = 60.0
"""How long the workers may take until they play."""
AHEAD = 400
"""Orders that wait at any time."""


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


async def measure(folder: Path, servers: str, store_port: int, rounds: int, block_s: float) -> dict[str, Any]:
    """Play with each ratio in turn, ``rounds`` times, and return the figures."""
    config = configuration(folder, servers, store_port)
    await asyncio.to_thread(admin.apply_all, config.bus)
    setup.start(config, "bench")
    made: dict[float | None, list[float]] = {ratio: [] for ratio in RATIOS}
    async with playing(config) as played:
        await block(played, 1.0, block_s)
        for number in range(rounds):
            for ratio in RATIOS if number % 2 else RATIOS[::-1]:
                made[ratio].append(await block(played, ratio, block_s))
    setup.stop()
    return {
        "rounds": rounds,
        "block_s": block_s,
        "cpu_us_a_step": {label(ratio): round(1e6 / statistics.median(values)) for ratio, values in made.items()},
        "throughput_to_none": {
            label(ratio): compared(made[ratio], made[None]) for ratio in RATIOS if ratio is not None
        },
        "spans_written": sum(1 for path in (config.run.folder / "traces").glob("*") for _ in path.open("rb")),
    }


def label(ratio: float | None) -> str:
    """Return what a ratio is called."""
    return "none" if ratio is None else str(ratio)


def compared(traced: Sequence[float], none: Sequence[float]) -> dict[str, Any]:
    """Return the median of the ratios of pairs, and its 95 % interval by resampling them."""
    ratios = [one / other for one, other in zip(traced, none, strict=True)]
    drawn = random.Random(0)
    medians = sorted(statistics.median(drawn.choices(ratios, k=len(ratios))) for _ in range(RESAMPLED))
    return {
        "median": round(statistics.median(ratios), 4),
        "interval": [round(medians[RESAMPLED * 25 // 1000], 4), round(medians[RESAMPLED * 975 // 1000], 4)],
    }


class Played:
    """Counts the observations that were published."""

    def __init__(self, records: AIOKafkaConsumer, places: Sequence[TopicPartition]) -> None:
        self.records = records
        self.places = places

    async def steps(self) -> int:
        """Return how many there are."""
        return sum((await self.records.end_offsets(self.places)).values())


async def block(played: Played, ratio: float | None, block_s: float) -> float:
    """Let the circle play with this ratio for a while; return the observations a second of CPU time."""
    setup.sample(ratio)
    await asyncio.sleep(SETTLE_S)
    setup.flush()
    steps, cpu = await played.steps(), time.process_time()
    await asyncio.sleep(block_s)
    setup.flush()
    made = await played.steps() - steps
    if not made:
        raise ServiceUnavailable(f"no observation in {block_s:g} s: see `dart-streams doctor`")
    return made / (time.process_time() - cpu)


@contextlib.asynccontextmanager
async def playing(config: Config) -> AsyncIterator[Played]:
    """Yield the count of observations while three workers play; they are named, for this part may not import them."""
    env, rollout, recorder = (
        importlib.import_module(f"workers.{name}.main") for name in ("env", "rollout", "recorder")
    )
    stop = asyncio.Event()
    async with Publisher(config.bus, "bench") as publisher, counting(config, publisher) as played:
        await publisher.publish(weights.TOPIC, first_version(config))
        tasks = [
            asyncio.create_task(env.live(config, "env-0", stop)),
            asyncio.create_task(rollout.live(config, "rollout-0", rollout.engine_of(config), stop)),
            asyncio.create_task(recorder.live(config, "recorder-0", stop)),
            asyncio.create_task(order_for_ever(publisher, played)),
        ]
        try:
            await until_played(played, tasks)
            yield played
        finally:
            stop.set()
            tasks.pop().cancel()
            await asyncio.wait(tasks, timeout=config.run.drain_s + 10)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def counting(config: Config, publisher: Publisher) -> AsyncIterator[Played]:
    """Yield a count of the deployment's observations."""
    partitions = await publisher.partitions_of(observations.TOPIC)
    records = consumer(config.bus, group=None, client_id="bench")
    await start_within(records, config.bus)
    try:
        name = config.bus.prefix + observations.TOPIC.name
        yield Played(records, [TopicPartition(name, number) for number in range(partitions)])
    finally:
        await records.stop()


async def until_played(played: Played, tasks: Sequence["asyncio.Task[Any]"]) -> None:
    """Return when the first steps are played; raise what ended a worker instead."""
    deadline = time.monotonic() + BOUND_S
    while await played.steps() < 50:
        for task in tasks:
            if task.done():
                task.result()
        if time.monotonic() > deadline:
            raise ServiceUnavailable(f"the workers did not begin to play within {BOUND_S:g} s")
        await asyncio.sleep(0.1)


async def order_for_ever(publisher: Publisher, played: Played) -> None:
    """Keep orders waiting."""
    ordered = 0
    while True:
        wanted = AHEAD + await played.steps() // 4
        while ordered < wanted:
            await publisher.publish(rollout_orders.TOPIC, order(ordered))
            ordered += 1
        await asyncio.sleep(0.05)


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
