"""Data wait and memory growth of the trainer over a prepared backlog: ``dart-streams bench trainer``.

Every screenshot is distinct; growth is the slope of resident memory over steps after a warm-up.
"""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import linear_regression
from typing import Any, NamedTuple

from benchmarks.private_services import private_services, write_config
from benchmarks.synthetic_groups import Maker, SyntheticBacklog, write
from benchmarks.trained_rows import trained_rows
from dart_streams.bus import admin, sync_clients
from dart_streams.bus.codec import encode
from dart_streams.config import Config
from dart_streams.errors import UserError
from dart_streams.store import AsyncStore, connect, create_schema
from topics import curated

WARM_SHARE = 0.2
"""Share of steps that are warm-up."""
CONCURRENCY = 20
"""Groups made and written together."""
TRAINING_TIMEOUT_S = 1800.0


class StepSample(NamedTuple):
    """Metrics of a trainer step."""

    wait_ms: float
    train_ms: float
    rss_mb: float
    sequences: float


def measure(folder: Path, steps: int, groups_per_step: int) -> dict[str, Any]:
    """Train ``steps`` batches with private services; return the metrics."""
    # Here and not above, so that the command's help works without torch.
    from dart_streams.policy import tiny
    from dart_streams.policy.rendering import renderer_of

    model = folder / "policy"
    tiny.build(model)
    with private_services() as running:
        config = write_config(
            running,
            folder,
            policy={"path": str(model)},
            curation={"max_staleness": steps},
            trainer={"groups_per_step": groups_per_step, "max_train_steps": steps},
        )
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
    """Run a trainer process to its end."""
    program = Path(sys.executable).parent / "dart-streams"
    log = folder / "trainer.log"
    with log.open("wb") as said:
        command: list[str | Path] = [program, "train", "--config", folder / "config.toml"]
        code = subprocess.run(command, stdout=said, stderr=said, timeout=TRAINING_TIMEOUT_S, check=False).returncode
    if code:
        raise UserError(f"the trainer ended with {code}: {log.read_text(errors='replace', encoding='utf-8')[-2000:]}")


def steps_of(config: Config) -> list[StepSample]:
    """Return the trainer's metrics of each step."""
    session = connect(config.store)
    try:
        rows = trained_rows(session, config.bus.run)
    finally:
        session.cluster.shutdown()
    found = [row["metrics"] for row in rows]
    return [StepSample(row["data_wait_ms"], row["train_ms"], row["rss_mb"], row["sequences"]) for row in found]
