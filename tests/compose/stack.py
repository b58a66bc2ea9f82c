"""The stack under test: Docker Compose on an engine, its containers' memory, and a reader of its topics."""

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dart_streams.errors import UserError
from tests.compose.engine import Engine
from tests.sources import ROOT

PROJECT = "dart-streams-test"
FILES = ("docker-compose.yml", "tests/compose/circle.yml")
CONFIG = "tests/compose/circle.toml"
POLL_S = 0.5


class Stack:
    """`docker compose` for the project of the test."""

    def __init__(
        self,
        engine: Engine,
        authority: Path,
        files: tuple[str, ...] = FILES,
        config: str = CONFIG,
        project: str = PROJECT,
    ) -> None:
        settings = {"DART_TAG": "test", "DART_CONFIG": config, "DART_BUILD_CA": str(authority)}
        self.engine = engine._replace(environment={**engine.environment, **settings})
        self.files = files
        self.project = project

    def command(self, *arguments: str) -> list[str]:
        files = [part for file in self.files for part in ("-f", str(ROOT / file))]
        return ["docker", "compose", "-p", self.project, *files, *arguments]

    def compose(self, *arguments: str, timeout_s: float = 900) -> str:
        """Run a command of Docker Compose and return what it prints."""
        return self.engine.docker(*self.command(*arguments)[1:], timeout_s=timeout_s, cwd=ROOT)

    def remove(self) -> None:
        """Remove all containers of the project, of any profile, and its volumes."""
        self.compose("--profile", "*", "down", "--volumes", "--remove-orphans")

    def logs(self) -> str:
        return self.compose("--profile", "*", "logs", "--no-color", "--timestamps")

    def start(self, *arguments: str, log: Path | None = None) -> "subprocess.Popen[str]":
        """Start a command of Docker Compose, with its output to a pipe or a log."""
        return subprocess.Popen(
            self.command(*arguments),
            env=self.engine.environment,
            cwd=ROOT,
            stdout=log.open("w") if log else subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def inside(self, *arguments: str) -> str:
        """Run a command in a new container with the network and the state of the stack, and return what it prints."""
        return self.compose("run", "--rm", "--no-deps", "-T", "--entrypoint", "python", "monitor", *arguments)

    def cli(self, *arguments: str) -> str:
        """Run a verb of `dart-streams` as users of the stack do, and return what it prints."""
        return self.compose("run", "--rm", "-T", "cli", *arguments)

    def ask(self, *urls: str) -> list[Any]:
        """Return what these addresses answer within the stack's network, as its services see it."""
        return list(json.loads(self.inside("-m", "tests.compose.ask", *urls)))

    def containers(self, service: str) -> list[dict[str, Any]]:
        """Return the containers of a service, running or not, as the engine describes them.

        `docker compose ps` is no use here: it inspects every container of the project, also those of `run --rm`, and
        fails if one is removed between its list and its look.
        """
        return self.inspect(f"label=com.docker.compose.service={service}", "label=com.docker.compose.oneoff=False")

    def inspect(self, *filters: str) -> list[dict[str, Any]]:
        """Return what the engine knows of the project's containers; one that is removed meanwhile is left out."""
        wanted = (f"label=com.docker.compose.project={self.project}", *filters)
        listed = self.engine.docker("ps", "--all", "--quiet", *(f"--filter={one}" for one in wanted)).split()
        found: list[dict[str, Any]] = []
        for container in listed:
            try:
                found += json.loads(self.engine.docker("inspect", "--type", "container", container))
            except UserError as error:
                if "No such container" not in str(error):
                    raise
        return found

    def states(self, service: str) -> list[str]:
        return [container["State"]["Status"] for container in self.containers(service)]

    def kill_process(self, service: str) -> None:
        """Kill all processes of a service as a crash would: the restart policy has to bring them back."""
        wait_until(lambda: set(self.states(service)) == {"running"}, f"each {service} to run", 600)
        pids = [container["State"]["Pid"] for container in self.containers(service)]
        assert all(pid > 1 for pid in pids), f"{service} does not run"
        subprocess.run([*self.engine.entering("--pid"), "kill", "-KILL", *map(str, pids)], check=True)

    def memory_mb(self) -> dict[str, float]:
        """Return what each running container of the project holds in memory, by its name."""
        ids = [found["Id"] for found in self.inspect("label=com.docker.compose.oneoff=False", "status=running")]
        rows = self.engine.docker("stats", "--no-stream", "--format", "{{.Name}} {{.MemUsage}}", *ids).splitlines()
        return {name.removeprefix(f"{self.project}-"): megabytes(used) for name, used, *_ in map(str.split, rows)}


def megabytes(text: str) -> float:
    """Read an amount of memory as `docker stats` prints it."""
    for unit, factor in (("GiB", 1024.0), ("MiB", 1.0), ("KiB", 1 / 1024), ("B", 1 / 1024**2)):
        if text.endswith(unit):
            return round(float(text.removesuffix(unit)) * factor, 1)
    raise ValueError(f"no amount of memory: {text!r}")


class Witness:
    """The newest of what the topics say."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.newest: dict[str, Any] = {}
        threading.Thread(target=self.read, daemon=True).start()

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self.newest = json.loads(line)

    def version(self) -> int:
        """The newest published weight version; -1 before the first."""
        version = self.newest.get("version")
        return -1 if version is None else int(version)


@contextmanager
def witness(stack: Stack) -> Iterator[Witness]:
    process = stack.start("run", "--rm", "--no-deps", "-T", "witness")
    try:
        yield Witness(process)
    finally:
        process.terminate()
        process.wait(300)


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float) -> float:
    """Wait for a condition and return how many seconds that took; fail, saying what it was, if it does not come."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < timeout_s, f"waited {timeout_s:g} s in vain for {what}"
        time.sleep(POLL_S)
    return round(time.monotonic() - began, 1)
