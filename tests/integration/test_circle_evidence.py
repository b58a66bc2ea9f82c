"""A failed test of a circle says first what ended, what waits and where, and how to repeat it."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from console.runs import run_folder
from dart_streams.bus import admin, clients
from dart_streams.bus.clients import Publisher
from tests import events, fork_server
from topics import observations

PLANTED = """
import os, shutil, pathlib
from tests import circle_evidence
circle_evidence.ASK_S = 120.0

def test_planted(tmp_path):
    run = pathlib.Path(os.environ["PLANTED_RUN"])
    made = shutil.copytree(run, tmp_path / "runs" / run.name)
    (made / "logs").mkdir()
    (made / "logs/env-0.log").write_text("begun")
    assert "the circle" == "turning"
"""
TASKS = Path(__file__).with_name("circle-tasks.toml")


async def read_one(config: Any, count: int) -> int:
    """Publish records, and commit the first of them as the recorder; return the number of its partition."""
    async with Publisher(config.bus, "test") as publisher:
        for number in range(count):
            await publisher.publish(observations.TOPIC, events.observation(number), record_id=f"o{number}")
    member = {"group": "recorder", "session_timeout_ms": 60_000}
    reader = clients.create_consumer(config.bus, observations.TOPIC, client_id="test", **member)
    await clients.start_within(reader, config.bus)
    try:
        record = await reader.getone()
        await reader.commit({clients.TopicPartition(record.topic, record.partition): record.offset + 1})
    finally:
        await reader.stop()
    return int(record.partition)


def test_a_failed_test_of_a_circle_says_first_what_is_wrong(services: Any, tmp_path: Path):
    given = services.config(run={"state_dir": str(tmp_path / "state")})
    made = run_folder.create(given, TASKS, run_folder.new_id(), resume=False)
    config = made.config()
    admin.apply_all(config.bus)
    services.buses.append(config.bus)
    made.write_journal(made.journal().with_death("trainer", "exit code 1", "ValueError: no loss", 1))
    partition = asyncio.run(read_one(config, 3))
    file = tmp_path / "test_planted.py"
    file.write_text(PLANTED)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.circle_evidence", "-p", "no:cacheprovider", file]
    root = str(Path(__file__).parents[2])
    environment = os.environ | {"PLANTED_RUN": str(made.path), "PYTHONPATH": root}
    done = fork_server.run(command, timeout=240, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 1, done.stdout + done.stderr
    head = done.stdout.partition("test_planted _")[2].splitlines()[1:11]
    assert f"circle {made.id}" in head
    assert "ended: trainer, exit code 1, times 1, last said: ValueError: no loss" in head
    assert f"waits: recorder at observations-{partition}, offset 1 of 3" in head, head
    last = next(line for line in head if line.startswith("last record: "))
    assert last.startswith(f"last record: observations-{partition}, offset 2, ")
    assert any(line.startswith("again: ") and "test_planted.py::test_planted" in line for line in head)
    assert "assert 'the circle' == 'turning'" in done.stdout
