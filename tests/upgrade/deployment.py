"""Processes of two releases on one broker and one database, each with the files and the environment of its release."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kafka.admin import KafkaAdminClient

from dart_streams.bus import admin
from dart_streams.bus.topology import declare_topics
from dart_streams.config import Config
from tests.sources import ROOT
from tests.waiting import wait_until

HOME = ROOT / ".dart/upgrade"
OLD_REVISION = "1aaa5eafd2e3ff2f50cadda1d8d3b474c0b41466"
"""Release 0.2.0."""
END_S = 300.0
BOUND_S = 4 * 3600.0
"""Longest time to a number of records, on a machine with other work."""
DECIDED = 100
"""Records of curation that show a curator at work: a batch that the one before has sent may be on its way."""
WORKERS = ("env", "rollout", "recorder")
"""Kinds whose processes share partitions."""


class Release(NamedTuple):
    """A release: its name here, the folder of its files, and the module of its command line."""

    name: str
    root: Path
    cli: str = "console.cli"

    @property
    def python(self) -> Path:
        """Return the interpreter of its environment."""
        return self.root / ".venv/streams/bin/python"

    def command(self, *arguments: str) -> list[str]:
        """Return a command line of its ``dart-streams``."""
        return [str(self.python), "-m", self.cli, *arguments]


OLD, NEW = Release("old", HOME / OLD_REVISION, "dart_streams.console.cli"), Release("new", ROOT)


class Deployment:
    """The running processes, by kind and release; see :func:`deployed`."""

    def __init__(self, file: Path, config: Config, logs: Path) -> None:
        self.file, self.config, self.logs = file, config, logs
        self.processes: dict[tuple[str, str], subprocess.Popen[bytes]] = {}

    def run(self, release: Release, *arguments: str) -> None:
        """Run a command of a release to its end."""
        command = release.command(*arguments, "--config", str(self.file))
        done = subprocess.run(command, cwd=release.root, env=environment(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self, release: Release, *kinds: str) -> None:
        """Start a process of each kind."""
        for kind in kinds:
            command = release.command("worker", kind, "--config", str(self.file), "--id", f"{kind}-{release.name}")
            if kind == "trainer":
                command = [str(release.python), "-m", "benchmarks.stand_in_trainer", str(self.file)]
            with (self.logs / f"{kind}-{release.name}.log").open("ab") as log:
                self.processes[kind, release.name] = subprocess.Popen(
                    command, cwd=release.root, env=environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )

    def end(self, release: Release, *kinds: str) -> None:
        """End processes in order."""
        for kind in kinds:
            self.processes[kind, release.name].send_signal(signal.SIGTERM)
        for kind in kinds:
            assert self.processes.pop((kind, release.name)).wait(END_S) == 0, self.evidence()

    def kill(self, release: Release, kind: str) -> None:
        """Kill a process as ``kill -9`` does."""
        process = self.processes.pop((kind, release.name))
        process.kill()
        process.wait()

    def check_alive(self) -> None:
        """Fail if a process has ended by itself."""
        ended = {name: process.returncode for name, process in self.processes.items() if process.poll() is not None}
        assert not ended, f"{ended}\n{self.evidence()}"

    def records(self) -> dict[str, int]:
        """Return the records of each topic so far, those of dead letters too."""
        with admin.connect(self.config.bus) as client:
            states = admin.describe(client, declare_topics(self.config.bus))
        return {state.topic.removeprefix(self.config.bus.prefix): sum(state.end_offsets) for state in states}

    def shares(self, *kinds: str) -> dict[str, list[int]]:
        """Return the numbers of partitions of each member of a kind's group."""
        with admin.connect(self.config.bus) as client:
            return {kind: partitions_of(client, self.config.bus.prefix + kind) for kind in kinds}

    def goes_on(self, topic: str, records: int) -> None:
        """Wait until a topic has this number of records."""

        def reached() -> bool:
            self.check_alive()
            return self.records()[topic] >= records

        wait_until(reached, f"{records} {topic}", BOUND_S)

    def decides(self) -> None:
        """Wait until a curator takes records: its state is there."""
        self.goes_on("curation-log", self.records()["curation-log"] + DECIDED)

    def evidence(self) -> str:
        """Return the ends of all logs."""
        ends = (f"--- {log.name}\n{log.read_text(errors='replace')[-1500:]}" for log in sorted(self.logs.glob("*.log")))
        return "\n".join(ends)


def partitions_of(client: KafkaAdminClient, group: str) -> list[int]:
    """Return the numbers of partitions of a group's members, 0 during a rebalance."""
    members = client.describe_groups([group])[group]["members"]
    assigned = [
        member["member_assignment"]["assigned_partitions"] if member["member_assignment"] else [] for member in members
    ]
    return [sum(len(topic["partitions"]) for topic in topics) for topics in assigned]


def environment() -> dict[str, str]:
    """Return the environment of a process, which takes its modules from its folder alone."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


@contextlib.contextmanager
def deployed(file: Path, config: Config) -> Iterator[Deployment]:
    """Yield a deployment without processes; at the end none is left."""
    logs = file.parent / "logs"
    logs.mkdir()
    made = Deployment(file, config, logs)
    try:
        yield made
    finally:
        for process in made.processes.values():
            process.kill()
            process.wait()
