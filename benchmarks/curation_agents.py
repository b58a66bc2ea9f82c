"""Throughput and latency of the four agents over Kafka: ``dart-streams bench agents``.

Writes finished rollouts to new topics, starts a curator process, and reports trajectories per second by wall clock and
by CPU time, the lag until it is zero, and the latency of single trajectories. Give the curator its own core::

taskset -c 0 dart-streams bench agents --core 1
"""

import asyncio
import importlib
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import tomli_w
from aiokafka import AIOKafkaConsumer

from benchmarks.curation_world import Odds, SimulatedCircle, task_set
from dart_streams.bus import admin
from dart_streams.bus.clients import Publisher, create_consumer, event_of, start_within
from dart_streams.bus.codec import encode
from dart_streams.bus.lag import lag_reader
from dart_streams.config import Bus, Config, parse
from dart_streams.curation.in_memory import CountingTrainer
from topics import curation_log, rollout_budgets, trajectories, weights
from topics.trajectories import Trajectory

TASKS = 1_000
SLOTS = 64
FLOOD_TIMEOUT_S = 600.0
AGENTS = ("difficulty", "budget", "groups", "dispatch")
CURATOR = "curator"
"""Consumer group of the curator."""
LAG_TIMEOUT_S = 30.0
LAG_POLL_INTERVAL_S = 0.5
POLL_TIMEOUT_MS = 200
LONE_TRAJECTORIES = 50
"""Number of single trajectories timed."""


def write_config(folder: Path, servers: str) -> Config:
    """Write the files of a deployment; return its configuration."""
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
        ),
        encoding="utf-8",
    )
    tables: dict[str, Any] = {
        "run": {"id": "bench", "state_dir": str(folder)},
        "bus": {"servers": servers, "prefix": f"bench.{uuid.uuid4().hex[:8]}."},
        "env": {"slots": SLOTS},
        "tasks": {"file": str(folder / "tasks.toml")},
    }
    (folder / "config.toml").write_text(tomli_w.dumps(tables), encoding="utf-8")
    return parse(tables)


def finished_trajectories(config: Config, count: int) -> list[Trajectory]:
    """Return N trajectories of a circle in memory."""
    circle = SimulatedCircle(config, task_set(TASKS), Odds(faults=0.02, partial=0.05))
    circle.settle()
    while len(circle.logs.get(trajectories.TOPIC.name, ())) < count:
        circle.end_one()
        circle.settle()
        circle.train()
    return [written.event for written in circle.logs[trajectories.TOPIC.name][:count]]


async def write(publisher: Publisher, events: list[Trajectory]) -> None:
    """Publish trajectories in batches."""
    name = publisher.bus.prefix + trajectories.TOPIC.name
    for start in range(0, len(events), 1000):
        sent = []
        for event in events[start : start + 1000]:
            record = encode(trajectories.TOPIC, event, (), event.trajectory_id)
            sent.append(await publisher.producer.send(name, record.value, key=record.key, headers=record.headers))
        await asyncio.gather(*sent)


class Flood(NamedTuple):
    """Wall and CPU seconds of a flood, records applied by agent, and ``lag`` as (seconds, records) until zero."""

    wall_s: float
    cpu_s: float
    seen: dict[str, int]
    lag: list[tuple[float, int]]


async def measure_flood(log: AIOKafkaConsumer, count: int, curator: psutil.Process, bus: Bus) -> Flood:
    """Wait until every agent has applied ``count`` records and the curator has committed its inputs."""
    lag = asyncio.create_task(lag_until_none(bus))
    try:
        wall_s, spent_s, seen = await count_applied(log, count, curator)
        async with asyncio.timeout(LAG_TIMEOUT_S):
            return Flood(wall_s, spent_s, seen, await lag)
    finally:
        lag.cancel()


async def count_applied(
    log: AIOKafkaConsumer, count: int, curator: psutil.Process
) -> tuple[float, float, dict[str, int]]:
    """Wait until every agent has applied ``count`` records; return wall seconds, CPU seconds, and records."""
    seen = dict.fromkeys(AGENTS, 0)
    first = last = spent_s = 0.0
    while min(seen.values()) < count:
        for batch in (await log.getmany(timeout_ms=POLL_TIMEOUT_MS)).values():
            last = batch[-1].timestamp / 1000
            first = first or batch[0].timestamp / 1000
            spent_s = spent_s or cpu_s(curator)
            for record in batch:
                seen[event_of(curation_log.TOPIC, record).agent] += 1
    return last - first, cpu_s(curator) - spent_s, seen


def cpu_s(process: psutil.Process) -> float:
    """Return the CPU time of a process (seconds)."""
    times = process.cpu_times()
    return float(times.user + times.system)


async def lag_until_none(bus: Bus) -> list[tuple[float, int]]:
    """Poll the curator's lag until it is zero; return the readings."""
    looks: list[tuple[float, int]] = []
    started = time.perf_counter()
    async with lag_reader(bus) as lags:
        while not looks or looks[-1][1]:
            places = [lag for lag in await lags.read() or () if lag.group == CURATOR]
            if places:
                looks.append((round(time.perf_counter() - started, 1), sum(lag.records for lag in places)))
            await asyncio.sleep(LAG_POLL_INTERVAL_S)
    return looks


async def time_lone(publisher: Publisher, log: AIOKafkaConsumer, events: list[Trajectory], count: int) -> list[float]:
    """Return the latency (ms) of each trajectory published alone, until dispatch has handled its results."""
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


async def measure(folder: Path, servers: str, count: int, core: int | None = None) -> dict[str, Any]:
    """Measure a flood of ``count`` trajectories, then single ones; pin the curator to ``core`` if given."""
    config = write_config(folder, servers)
    changelogs = importlib.import_module("workers.curator.changelogs")
    admin.apply_all(config.bus, changelogs.changelog_topics(config))
    events = finished_trajectories(config, count + LONE_TRAJECTORIES)
    log = create_consumer(config.bus, curation_log.TOPIC, group="bench", client_id="bench")
    async with Publisher(config.bus, "bench") as publisher:
        await publisher.publish(weights.TOPIC, CountingTrainer(1).weights())
        await write(publisher, events[:count])
        await start_within(log, config.bus)
        curator = start_curator(folder, core)
        try:
            async with asyncio.timeout(FLOOD_TIMEOUT_S):
                found = await measure_flood(log, count, psutil.Process(curator.pid), config.bus)
                took = await time_lone(publisher, log, events[count:], count)
        finally:
            await log.stop()
            curator.terminate()
            curator.wait(30)
    return {
        "trajectories": count,
        "events": found.seen,
        "wall_s": round(found.wall_s, 2),
        "per_s": round(count / found.wall_s),
        "cpu_s": round(found.cpu_s, 2),
        "per_cpu_s": round(count / found.cpu_s),
        "lag": {f"{at_s} s": records for at_s, records in found.lag},
        "lone_ms": {"p50": round(took[len(took) // 2], 1), "max": round(took[-1], 1)},
    }


def start_curator(folder: Path, core: int | None) -> subprocess.Popen[bytes]:
    """Start a curator process, on one core if given."""
    program = Path(sys.executable).parent / "dart-streams"
    curator = subprocess.Popen([program, "worker", "curator", "--config", folder / "config.toml"])
    if core is not None:
        psutil.Process(curator.pid).cpu_affinity([core])
    return curator
