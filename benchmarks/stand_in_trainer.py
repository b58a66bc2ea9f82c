"""Stand-in for the trainer, for tests and benchmarks: ``python -m benchmarks.stand_in_trainer CONFIG``.

It publishes version 0, then a version and its row for every ``trainer.groups_per_step`` groups, up to
``trainer.max_train_steps``. With a ``[workload]`` a step takes the workload's time.
"""

import asyncio
import contextlib
import random
import signal
import sys
from pathlib import Path
from typing import Any

from aiokafka import TopicPartition

from benchmarks.trained_rows import trained_rows
from dart_streams.bus.clients import Publisher, create_consumer, event_of, start_within
from dart_streams.bus.codec import Undecodable
from dart_streams.clock import now_ms
from dart_streams.config import Config, load
from dart_streams.curation.staleness import group_staleness
from dart_streams.store import SyncStore, connect
from dart_streams.telemetry import names, setup, spans
from dart_streams.telemetry.health_server import answering_probes
from dart_streams.telemetry.process_health import ProcessHealth
from topics import curated, trained, weights
from topics.curated import CuratedGroup
from topics.trained import TrainedStep
from topics.weights import WeightVersion
from workers.runtime.lifecycle import TURN_BOUND_S


def version_of(config: Config, version: int, groups: int, epoch: int) -> WeightVersion:
    """Return a version as the trainer announces it, without files."""
    return WeightVersion(
        model_id=config.policy.model_id,
        version=version,
        uri=f"file:///nowhere/{version}",
        sha256="0" * 64,
        train_step=version,
        epoch=epoch,
        groups_consumed=groups,
    )


def row_of(groups: list[CuratedGroup], version: int, consumed: int, epoch: int, train_ms: float) -> dict[str, Any]:
    """Return the row of a step."""
    reward = sum(group.mean for group in groups) / len(groups)
    return {
        "version": version,
        "epoch": epoch,
        "group_ids": [group.group_id for group in groups],
        "trajectory_ids": [member.trajectory_id for group in groups for member in group.members],
        "metrics": {"loss": 1.0 / version, "reward": reward, "consumed": consumed, "train_ms": train_ms},
        "at_ms": now_ms(),
    }


async def publish_step(
    config: Config,
    store: SyncStore,
    publisher: Publisher,
    groups: list[CuratedGroup],
    said: list[str],
    row: dict[str, Any],
) -> None:
    """Store a step's row, and publish its version and its record."""
    version, epoch, consumed = row["version"], row["epoch"], row["metrics"]["consumed"]
    links = [spans.group_span(config.bus.run, group.group_id) for group in groups]
    ids = spans.train_step_span(config.bus.run, version)
    with spans.ActiveSpan(names.SPAN_TRAIN_STEP, ids=ids, parent=spans.ROOT, links=links) as span:
        span.set_attributes(ATTR_VERSION=version, ATTR_TRAIN_STEP=version)
        await asyncio.to_thread(store.write_trained_by_claim, config.policy.model_id, epoch, version, row)
        await publisher.publish(weights.TOPIC, version_of(config, version, consumed, epoch))
        await publisher.publish(trained.TOPIC, TrainedStep(train_step=version, feedback=said, **row))
        spans.trace_training(span, row["trajectory_ids"])


async def run_trainer(config: Config, health: ProcessHealth) -> None:
    """Take groups and announce versions until SIGTERM; each turn of the loop is noted for probes."""
    stop, workload = asyncio.Event(), config.workload
    rng = random.Random(workload.seed if workload else 0)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    session = connect(config.store)
    store = SyncStore(session, config.bus.run, 1)
    records = create_consumer(config.bus, group=None, client_id="trainer")
    place = TopicPartition(config.bus.prefix + curated.TOPIC.name, 0)
    rows = trained_rows(session, config.bus.run)
    epoch = store.claim_epoch(config.policy.model_id)
    version, consumed = len(rows), int(rows[-1]["metrics"]["consumed"]) if rows else 0
    groups, said = list[CuratedGroup](), list[str]()
    taken = {name for row in rows for name in row["group_ids"]}
    async with Publisher(config.bus, "trainer") as publisher:
        await start_within(records, config.bus)
        records.assign([place])
        records.seek(place, consumed)
        await publisher.publish(weights.TOPIC, version_of(config, version, consumed, epoch))
        if rows:
            await publisher.publish(trained.TOPIC, TrainedStep(**rows[-1]))
        while not stop.is_set() and version != config.trainer.max_train_steps:
            health.note_turn()
            for batch in (await records.getmany(timeout_ms=100, max_records=1)).values():
                consumed += 1
                try:
                    group = event_of(curated.TOPIC, batch[0])
                except Undecodable:
                    continue
                # A curator that was killed publishes its last groups again.
                new = [] if group.group_id in taken else [group]
                taken.add(group.group_id)
                if group.feedback:  # It takes no place in the batch.
                    said += [one.group_id for one in new]
                    continue
                held = [*groups, *new]
                groups = [g for g in held if group_staleness(g, version) <= config.curation.max_staleness]
                if groups != held:  # Dispatch must not wait for those that are dropped.
                    said_again = version_of(config, version, consumed - len(groups), epoch)
                    await publisher.publish(weights.TOPIC, said_again)
            if len(groups) == config.trainer.groups_per_step:
                version += 1
                lasts_s = workload.clock_s(workload.optimizer_s.draw(rng)) if workload else 0.0
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(lasts_s):
                        await stop.wait()
                row = row_of(groups, version, consumed, epoch, lasts_s * 1000)
                await publish_step(config, store, publisher, groups, said, row)
                groups, said = [], []
    await records.stop()
    session.cluster.shutdown()


if __name__ == "__main__":
    deployment = load(Path(sys.argv[1]))
    setup.start(deployment, "trainer-0")
    probed = ProcessHealth(TURN_BOUND_S)
    with contextlib.suppress(KeyboardInterrupt), answering_probes(probed):
        asyncio.run(run_trainer(deployment, probed))
    setup.stop()
