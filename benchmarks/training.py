"""The trainer over a prepared backlog, with nothing else under way: ``dart-streams bench trainer``.

How large the wait for data is when there are always groups to take, and how much memory a batch of screenshots leaves
behind: the slope of the process's resident memory over its steps, after a warm-up. Every screenshot is another one.
"""

import asyncio
import contextlib
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from statistics import linear_regression
from typing import Any, NamedTuple

import tomli_w

from benchmarks.private_services import private_services
from benchmarks.synthetic_groups import Maker, SyntheticBacklog, write
from dart_streams.bus import admin, sync_clients
from dart_streams.bus.codec import encode
from dart_streams.config import Config, parse
from dart_streams.errors import UserError
from dart_streams.store import AsyncStore, SyncStore, connect, create_schema
from topics import curated

WARM_SHARE = 0.2
"""This share of the steps is warm-up: caches and pools fill."""
CONCURRENCY = 20
"""Groups that are made and written together."""
TRAINING_TIMEOUT_S = 1800.0


class StepSample(NamedTuple):
    """What a step of the trainer measured of itself."""

    wait_ms: float
    train_ms: float
    rss_mb: float
    sequences: float


def measure(folder: Path, steps: int, groups_per_step: int) -> dict[str, Any]:
    """Train ``steps`` batches with services of its own and return the figures."""
    # Here and not above, so that the command's help works without torch.
    from dart_streams.policy import tiny
    from dart_streams.policy.rendering import renderer_of

    model = folder / "policy"
    tiny.build(model)
    with private_services() as running:
        config = write_config(running, folder, model, steps, groups_per_step)
        admin.apply_all(config.bus)
        create_schema(config.store)
        maker = Maker(config, renderer_of(model, config.policy))
        for start in range(0, steps * groups_per_step, CONCURRENCY):
            count = min(CONCURRENCY, steps * groups_per_step - start)
            prepare(config, [maker.group(index) for index in range(start, start + count)])
        train(folder)
        return summarize_steps(steps_of(config))


def summarize_steps(steps: Sequence[StepSample]) -> dict[str, Any]:
    """Return the benchmark's JSON."""
    warm = steps[round(len(steps) * WARM_SHARE) :]
    waited, trained = sum(step.wait_ms for step in warm), sum(step.train_ms for step in warm)
    return {
        "steps": len(steps),
        "warm_up_steps": len(steps) - len(warm),
        "sequences_per_step": round(sum(step.sequences for step in steps) / len(steps), 1),
        "data_wait_pct": round(100 * waited / (waited + trained), 2),
        "train_ms": round(trained / len(warm), 1),
        "rss_mb": {"first": round(steps[0].rss_mb), "warm": round(warm[0].rss_mb), "last": round(warm[-1].rss_mb)},
        "rss_slope_mb_per_step": round(linear_regression(range(len(warm)), [step.rss_mb for step in warm]).slope, 4),
    }


def write_config(running: Config, folder: Path, model: Path, steps: int, groups_per_step: int) -> Config:
    """Write the trainer's configuration file and return it."""
    tables: dict[str, Any] = {
        "run": {"id": "bench", "state_dir": str(folder)},
        "bus": {"servers": running.bus.servers, "prefix": f"bench.{uuid.uuid4().hex[:8]}."},
        "store": {"hosts": list(running.store.hosts), "port": running.store.port},
        "policy": {"path": str(model)},
        "curation": {"max_staleness": steps},
        "trainer": {"groups_per_step": groups_per_step, "max_train_steps": steps},
    }
    (folder / "config.toml").write_text(tomli_w.dumps(tables))
    return parse(tables)


def prepare(config: Config, groups: Sequence[SyntheticBacklog]) -> None:
    """Store the steps and screenshots of groups, then announce them on ``curated``."""

    async def store() -> None:
        session = connect(config.store)
        try:
            rows = AsyncStore(session, config.bus.run, 16)
            await asyncio.gather(*(write([group], rows) for group in groups))
        finally:
            session.cluster.shutdown()

    asyncio.run(store())
    with contextlib.closing(sync_clients.create_producer(config.bus, "bench")) as producer:
        for made in groups:
            record = encode(curated.TOPIC, made.group)
            name = config.bus.prefix + curated.TOPIC.name
            producer.send(name, key=record.key, value=record.value, headers=record.headers)
        producer.flush(timeout=60)


def train(folder: Path) -> None:
    """Be a trainer's parent until it has made all its steps."""
    program = Path(sys.executable).parent / "dart-streams"
    log = folder / "trainer.log"
    with log.open("wb") as said:
        command: list[str | Path] = [program, "train", "--config", folder / "config.toml"]
        code = subprocess.run(command, stdout=said, stderr=said, timeout=TRAINING_TIMEOUT_S, check=False).returncode
    if code:
        raise UserError(f"the trainer ended with {code}: {log.read_text(errors='replace')[-2000:]}")


def steps_of(config: Config) -> list[StepSample]:
    """Return what the trainer wrote of each step, in order."""
    session = connect(config.store)
    try:
        rows = SyncStore(session, config.bus.run, 1).trained()
    finally:
        session.cluster.shutdown()
    found = [row["metrics"] for row in rows]
    return [StepSample(row["data_wait_ms"], row["train_ms"], row["rss_mb"], row["sequences"]) for row in found]
