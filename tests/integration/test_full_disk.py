"""Commands on a full or unwritable disk end with one line, whichever clients they hold."""

import asyncio
import base64
import os
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import tomli_w

from console.launch.services.daemon import free_port
from console.runs.run_folder import without_nulls
from dart_streams.bus import admin
from dart_streams.bus.clients import Publisher
from dart_streams.config import Config
from tests import events, fork_server
from tests.faults import disk
from topics import observations

TASKS = Path(__file__).parents[2] / "deploy/config/tasks.toml"
EVENTS = 60

pytestmark = pytest.mark.skipif(bool(disk.possible()), reason=disk.possible())


async def publish_noise(config: Config) -> None:
    """Publish megabytes that no compression makes small."""
    async with Publisher(config.bus, "noise") as publisher:
        for number in range(EVENTS):
            text = base64.b64encode(os.urandom(60_000)).decode()
            await publisher.publish(observations.TOPIC, events.observation(number, instruction=text))


def execute(*arguments: object) -> tuple[int, str]:
    """Run the command as a process, which has to end by itself; return its code and its stderr."""
    done = fork_server.run([fork_server.PROGRAM, *arguments], text=True, timeout=120)
    return done.returncode, done.stderr


SURPRISED = """
import sys
from console.cli import main
from console.runs.bundle import Writer

def surprise(self, name, kind, items):
    if kind == "records":
        print("holds", next(iter(items))[:0])
        raise ZeroDivisionError("nobody expects it")

Writer.section = surprise
Writer.records = lambda self, topic, records: surprise(self, topic, "records", (b"" for _ in records))
main.main()
"""


def write_config(config: Config, folder: Path, **run: object) -> Path:
    """Write a deployment's file with further keys of ``[run]``."""
    tables = without_nulls(msgspec.to_builtins(config))
    tables["run"] |= run
    tables["tasks"]["file"] = str(TASKS)
    path = folder / "config.toml"
    path.write_text(tomli_w.dumps(tables))
    return path


def test_a_capture_to_a_full_disk_ends_with_one_line_and_no_file(services, tmp_path: Path):
    config = services.config()
    admin.apply_all(config.bus)
    asyncio.run(publish_noise(config))
    with disk.small_disk(tmp_path / "disk", 1) as place:
        code, said = execute("capture", "-c", write_config(config, tmp_path), "-o", place / "run.dart")
        assert list(place.iterdir()) == []
    assert code == 2, said
    assert (
        said.splitlines()[-1]
        == f"error: {place}/run.dart.part can't be written: No space left on device; make room there"
    )
    assert "Traceback" not in said


def test_an_unexpected_error_ends_a_command_that_reads_a_topic(services, tmp_path: Path):
    config = services.config()
    admin.apply_all(config.bus)
    asyncio.run(publish_noise(config))
    path = write_config(config, tmp_path)
    arguments = ("capture", "-c", str(path), "-o", str(tmp_path / "run.dart"), "--topics", "observations")
    done = subprocess.run(
        [sys.executable, "-c", SURPRISED, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (1, "holds b''\n"), done.stderr
    assert done.stderr.splitlines()[-1] == "ZeroDivisionError: nobody expects it"


@pytest.mark.parametrize("disk_is", ["full", "read-only"])
def test_a_run_on_a_disk_that_takes_nothing_ends_with_one_line(services, tmp_path: Path, disk_is: str):
    with disk.small_disk(tmp_path / "disk", 1) as place:
        state = place / "state"
        state.mkdir()
        disk.fill(place)
        if disk_is == "read-only":
            subprocess.run(["mount", "-o", "remount,ro", place], check=True)
        path = write_config(services.config(), tmp_path, state_dir=str(state))
        code, said = execute("run", path, "--id", "one", "--set", "rollout.engine=scripted")
        assert (code, len(said.splitlines()), "Traceback" in said) == (2, 1, False), said
        assert said.startswith(f"error: {state}/runs") and "can't be written: " in said
        assert not (state / "runs/one").exists() and not (state / "runs/latest").is_symlink()
        if disk_is == "full":
            disk.make_room(place)


def test_a_start_that_fails_does_not_become_the_latest_run(services, tmp_path: Path):
    path = write_config(services.config(), tmp_path, state_dir=str(tmp_path / "state"))
    with socket.create_server(("127.0.0.1", free_port())) as silent:
        server = f"bus.servers=127.0.0.1:{silent.getsockname()[1]}"
        code, said = execute("run", path, "--set", server, "--set", "bus.wait_s=1")
    assert code == 3 and "no Kafka broker" in said, said
    assert [file.name for file in (tmp_path / "state/runs").iterdir() if file.is_symlink()] == []
    assert len(list((tmp_path / "state/runs").glob("*/config.toml"))) == 1
