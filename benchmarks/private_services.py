"""A Kafka and a Cassandra of one's own, on free ports, while a block or a command runs: for tests and benchmarks.

``python -m benchmarks.private_services COMMAND …`` runs a command with ``DART_TEST_SERVICES`` naming them.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from dart_streams.config import Bus, Config, Run, Services, Store
from dart_streams.console.launch.services import local
from dart_streams.console.launch.services.daemon import free_port
from dart_streams.console.launch.services.jars import RECIPES
from dart_streams.errors import UserError

ENVIRONMENT = "DART_TEST_SERVICES"
HOMES = RECIPES.parents[1] / ".dart" / "private"
OWNER = "owner.lock"
SWEEPER = "sweeper.lock"
READY_TIMEOUT_S = 180.0
"""Generous: tests run on machines that do other things at the same time."""


@contextlib.contextmanager
def private_services(homes: Path = HOMES, *, optimise: bool = False) -> Iterator[Config]:
    """Yield a configuration whose broker and database are this block's own, or those that the environment names.

    They are stopped and their data removed at the end; ``optimise`` is that of the configuration. What a killed process
    left behind is cleaned up first.
    """
    if named := os.environ.get(ENVIRONMENT):
        yield named_services(named)
        return
    with private_folder(homes) as folder:
        config = Config(
            bus=Bus(servers=f"127.0.0.1:{free_port()}"),
            store=Store(port=free_port()),
            run=Run(state_dir=str(folder)),
            services=Services(ready_s=READY_TIMEOUT_S, optimise=optimise),
        )
        local.start_services(config)
        yield config


@contextlib.contextmanager
def private_folder(homes: Path = HOMES, suffix: str = "") -> Iterator[Path]:
    """Yield a state folder of this process's; services that were started in it are stopped and removed at the end."""
    homes.mkdir(parents=True, exist_ok=True)
    folder = homes / f"{os.getpid()}{suffix}"
    owner = FileLock(folder / OWNER)
    with FileLock(homes / SWEEPER):  # another's sweep would take a folder whose owner has not locked it yet
        sweep(homes)
        folder.mkdir(exist_ok=True)
        owner.acquire()
    try:
        yield folder
    finally:
        stop_services(folder)
        with FileLock(homes / SWEEPER):  # another's sweep would open the lock's file while its folder goes
            shutil.rmtree(folder, ignore_errors=True)
        owner.release()


def stop_services(folder: Path) -> None:
    """Stop the services of a state folder, and remove their data."""
    local.stop_services(Config(run=Run(state_dir=str(folder))), wipe=True)


def named_services(text: str) -> Config:
    """Read ``host:kafka-port,host:cql-port``."""
    kafka, _, cassandra = text.partition(",")
    host, _, port = cassandra.rpartition(":")
    if not kafka or not host or not port.isdecimal():
        raise UserError(f"{ENVIRONMENT} is {text!r}: give host:kafka-port,host:cql-port")
    return Config(bus=Bus(servers=kafka), store=Store(hosts=(host,), port=int(port)))


def sweep(homes: Path) -> None:
    """Stop and remove the services whose owner is gone: its lock was released with it."""
    for folder in homes.iterdir():
        if (folder / OWNER).exists():
            with contextlib.suppress(Timeout), FileLock(folder / OWNER, timeout=0):
                stop_services(folder)
                shutil.rmtree(folder, ignore_errors=True)


def main(command: list[str]) -> int:
    """Run a command with services of its own and return its exit code."""
    with private_services() as config:
        names = f"{config.bus.servers},{config.store.hosts[0]}:{config.store.port}"
        return subprocess.run(command, env={**os.environ, ENVIRONMENT: names}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
