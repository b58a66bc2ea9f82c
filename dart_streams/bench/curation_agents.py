"""How fast the four agents are over Kafka: ``dart-streams bench agents``.

Writes finished rollouts to a fresh set of topics, starts a curator process, and prints JSON: trajectories a second
through all four agents until nothing is left to read, by the clock and by the curator's CPU time; the lag that is left
when its last offsets are committed, and how long that took; and how long it takes from a lone trajectory until dispatch
has acted on it.
"""

import asyncio
import importlib
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import psutil
import tomli_w
from aiokafka import AIOKafkaConsumer

from dart_streams.bench.curation_circle import Circle
from dart_streams.bench.curation_world import CountingTrainer, Odds, task_set
from dart_streams.bus import admin
from dart_streams.bus.clients import Publisher, consumer, event_of, start_within
from dart_streams.bus.codec import encode
from dart_streams.config import Bus, Config, parse
from dart_streams.run.lag import lag_reader
from topics import curation_log, rollout_budgets, trajectories, weights
from topics.trajectories import Trajectory

TASKS = 1_000
SLOTS = 64
BOUND_S = 600.0
AGENTS = ("difficulty", "budget", "groups", "dispatch")
CURATOR = "curator"
"""The curator's consumer group."""
LAG_BOUND_S = 30.0
LAG_LOOK_S = 0.2
LONE = 50
"""How many lone trajectories are timed."""


def configuration(folder: Path, servers: str) -> Config:
    """Write the files of a deployment of its own and return its configuration."""
    (folder / "tasks.toml").write_text(
        tomli_w.dumps(
            {
                "pages": [
                    {
                        "environment": "simulated",
                        "page": "grid",
                        "max_steps": 10,
                        "train_seeds": [0, TASKS],
                        "heldout_seeds": [1_000_000, 1_000_001],
                    }
                ]
            }
        )
    )
    tables: dict[str, Any] = {
        "run": {"id": "bench", "state_dir": str(folder)},
        "bus": {"servers": servers, "prefix": f"bench.{uuid.uuid4().hex[:8]}."},
        "env": {"slots": SLOTS},
        "tasks": {"file": str(folder / "tasks.toml")},
    }
    (folder / "config.toml").write_text(tomli_w.dumps(tables))
    return parse(tables)


def finishes(config: Config, count: int) -> list[Trajectory]:
    """Return so many trajectories, as the circle in memory makes them."""
    circle = Circle(config, task_set(TASKS), Odds(faults=0.02, partial=0.05))
    circle.settle()
    while len(circle.logs.get(trajectories.TOPIC.name, ())) < count:
        circle.end_one()
        circle.settle()
        circle.train()
    return [written.event for written in circle.logs[trajectories.TOPIC.name][:count]]


async def write(publisher: Publisher, events: list[Trajectory]) -> None:
    """Publish trajectories, many at a time."""
    name = publisher.bus.prefix + trajectories.TOPIC.name
    for start in range(0, len(events), 1000):
        sent = []
        for event in events[start : start + 1000]:
            record = encode(trajectories.TOPIC, event, (), event.trajectory_id)
            sent.append(await publisher.producer.send(name, record.value, key=record.key, headers=record.headers))
        await asyncio.gather(*sent)


async def flood(log: AIOKafkaConsumer, count: int, curator: psutil.Process) -> tuple[float, float, dict[str, int]]:
    """Read until every agent has applied ``count`` records.

    Return the seconds from first to last by the clock, those of the curator's CPU time, and each agent's records.
    """
    seen = dict.fromkeys(AGENTS, 0)
    first = last = spent_s = 0.0
    async for record in log:
        last = record.timestamp / 1000
        first = first or last
        spent_s = spent_s or cpu_s(curator)
        seen[event_of(curation_log.TOPIC, record).agent] += 1
        if min(seen.values()) >= count:
            break
    return last - first, cpu_s(curator) - spent_s, seen


def cpu_s(process: psutil.Process) -> float:
    """Return how much CPU time a process has used (seconds)."""
    times = process.cpu_times()
    return float(times.user + times.system)


async def lag_left(bus: Bus) -> tuple[int, float]:
    """Wait for the curator's lag to go; return what is left of it (records), and how long that took (seconds)."""
    started = time.perf_counter()
    async with lag_reader(bus) as lags:
        while True:
            places = [lag for lag in await lags.read() if lag.group == CURATOR]
            left, waited_s = sum(lag.records for lag in places), time.perf_counter() - started
            if (places and not left) or waited_s > LAG_BOUND_S:
                return left, waited_s
            await asyncio.sleep(LAG_LOOK_S)


async def lone(publisher: Publisher, log: AIOKafkaConsumer, events: list[Trajectory], count: int) -> list[float]:
    """Return how long each trajectory, alone, took until dispatch had settled what came of it (milliseconds)."""
    took = []
    for offset, event in enumerate(events, start=count):
        started = time.perf_counter()
        await publisher.publish(trajectories.TOPIC, event, record_id=event.trajectory_id)
        async for record in log:
            entry = event_of(curation_log.TOPIC, record)
            if entry.source.topic == rollout_budgets.TOPIC.name and entry.source.offset >= offset:
                break
        took.append((time.perf_counter() - started) * 1000)
    return sorted(took)


async def measure(folder: Path, servers: str, count: int) -> dict[str, Any]:
    """Flood a curator with ``count`` trajectories, then let some come alone."""
    config = configuration(folder, servers)
    changelogs = importlib.import_module("workers.curator.changelogs")
    admin.apply_all(config.bus, changelogs.changelog_topics(config))
    events = finishes(config, count + LONE)
    log = consumer(config.bus, curation_log.TOPIC, group="bench", client_id="bench")
    async with Publisher(config.bus, "bench") as publisher:
        await publisher.publish(weights.TOPIC, CountingTrainer(1).weights())
        await write(publisher, events[:count])
        await start_within(log, config.bus)
        curator = start_curator(folder)
        try:
            async with asyncio.timeout(BOUND_S):
                wall_s, spent_s, seen = await flood(log, count, psutil.Process(curator.pid))
                left, waited_s = await lag_left(config.bus)
                took = await lone(publisher, log, events[count:], count)
        finally:
            await log.stop()
            curator.terminate()
            curator.wait(30)
    return {
        "trajectories": count,
        "events": seen,
        "wall_s": round(wall_s, 2),
        "per_s": round(count / wall_s),
        "cpu_s": round(spent_s, 2),
        "per_cpu_s": round(count / spent_s),
        "lag": {"left": left, "after_s": round(waited_s, 1)},
        "lone_ms": {"p50": round(took[len(took) // 2], 1), "max": round(took[-1], 1)},
    }


def start_curator(folder: Path) -> subprocess.Popen[bytes]:
    """Start a curator process of this deployment."""
    program = Path(sys.executable).parent / "dart-streams"
    return subprocess.Popen([program, "worker", "curator", "--config", folder / "config.toml"])
