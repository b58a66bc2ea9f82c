"""Recorded optimiser steps are made again from a bundle alone, with the loss that was recorded."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.synthetic_groups import BacklogShape, Maker, write
from dart_streams.bus import sync_clients
from dart_streams.bus.codec import encode
from dart_streams.cli import main as command_line
from dart_streams.config import Config
from dart_streams.errors import UserError
from dart_streams.history import capture
from dart_streams.history import retrain as reproduce
from dart_streams.history.bundle import Bundle
from dart_streams.policy import tiny
from dart_streams.policy.rendering import Renderer
from dart_streams.store import AsyncStore, SyncStore, connect
from topics import ALL, Topic, curated, observations
from trainer import main

TASKS = Path(__file__).parents[2] / "deploy" / "config" / "tasks.toml"
STEPS = 3


@pytest.fixture(scope="module")
def run(services: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Config, Path]]:
    """A run of three steps that is over, and its bundle."""
    folder = tmp_path_factory.mktemp("policy") / "tiny"
    tiny.build(folder)
    config: Config = services.config(
        policy={"path": str(folder)},
        trainer={"groups_per_step": 2, "micro_batch": 4, "max_train_steps": STEPS, "keep_versions": 2},
        curation={"max_staleness": 100},
        tasks={"file": str(TASKS)},
    )
    maker = Maker(config, Renderer(folder, config.policy.min_pixels, config.policy.max_pixels), BacklogShape(2, 2))
    groups = [maker.group(index) for index in range(2 * STEPS)]

    async def store_all() -> None:
        session = connect(config.store)
        await write(groups, AsyncStore(session, config.bus.run, 16))
        session.cluster.shutdown()

    asyncio.run(store_all())
    producer = sync_clients.producer(config.bus, "test")

    def send(topic: Topic, event: Any) -> None:
        record = encode(topic, event)
        name = config.bus.prefix + topic.name
        producer.send(name, key=record.key, value=record.value, headers=record.headers).get(timeout=10)

    for made in groups:
        for seen in (step for steps in made.observations.values() for step in steps):
            send(observations.TOPIC, seen)
        send(curated.TOPIC, made.group)
    producer.close()
    assert main.run(config) == 0
    path = tmp_path_factory.mktemp("bundle") / "run.dart"
    session = connect(config.store)
    capture.capture(config, path, ALL, SyncStore(session, config.bus.run, 16))
    session.cluster.shutdown()
    yield config, path


def test_the_recorded_losses_come_again(run: tuple[Config, Path]) -> None:
    _, path = run
    again = reproduce.run(path, STEPS, None)
    assert [step.train_step for step in again] == [3], "two versions are kept: v2, which step 3 started from, and v3"
    assert all(step.equal and step.refused == 0 for step in again), again
    told = CliRunner().invoke(command_line.build(["train"]), ["train", "--replay", str(path), "--from", "3", "--json"])
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)[0]["weights"] == "v2"


def test_steps_whose_weights_or_records_are_gone_are_refused(run: tuple[Config, Path], tmp_path: Path) -> None:
    config, path = run
    with pytest.raises(UserError, match=r"v0.*keep_versions"):
        reproduce.run(path, 1, 1)
    with pytest.raises(UserError, match="no train step 9: the bundle has 1 to 3"):
        reproduce.run(path, 1, 9)
    capture.capture(config, tmp_path / "bare.dart", ALL)
    assert not Bundle(tmp_path / "bare.dart").has("blobs")
    with pytest.raises(UserError, match="has no blobs"):
        reproduce.run(tmp_path / "bare.dart", 1, 3)
