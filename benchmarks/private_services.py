"""Private Kafka and Cassandra on free ports during a block or a command, for tests and benchmarks.

``python -m benchmarks.private_services COMMAND …`` runs a command with ``DART_TEST_SERVICES`` naming them.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomli_w
from filelock import FileLock, Timeout

from console.launch.services import local
from console.launch.services.daemon import free_port
from dart_streams.config import Bus, Config, Run, Services, Store, parse
from dart_streams.errors import UserError
from dart_streams.java import RECIPES

ENVIRONMENT = "DART_TEST_SERVICES"
HOMES = RECIPES.parents[1] / ".dart" / "private"
OWNER = "owner.lock"
SWEEPER = "sweeper.lock"
READY_TIMEOUT_S = 180.0
"""Start timeout on a busy machine."""


@contextlib.contextmanager
def private_services(homes: Path = HOMES, *, optimise: bool = False) -> Iterator[Config]:
    """Yield a configuration with private broker and database, or those that the environment names.

    They are stopped and their data removed at the end, as are leftovers of killed processes.
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
    """Yield a private state folder; its services are stopped and removed at the end."""
    homes.mkdir(parents=True, exist_ok=True)
    folder = homes / f"{os.getpid()}{suffix},#=50%25 *[b]\u0436"
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
    """Stop the services of a state folder and remove their data."""
    local.stop_services(Config(run=Run(state_dir=str(folder))), wipe=True)


def named_services(text: str) -> Config:
    """Parse ``host:kafka-port,host:cql-port``."""
    kafka, _, cassandra = text.partition(",")
    host, _, port = cassandra.rpartition(":")
    if not kafka or not host or not port.isdecimal():
        raise UserError(f"{ENVIRONMENT} is {text!r}: give host:kafka-port,host:cql-port")
    return Config(bus=Bus(servers=kafka), store=Store(hosts=(host,), port=int(port)))


def sweep(homes: Path) -> None:
    """Remove services whose owner is dead, as its released lock shows, but for what cannot be removed."""
    for folder in homes.iterdir():
        if (folder / OWNER).exists():
            with contextlib.suppress(Timeout, OSError), FileLock(folder / OWNER, timeout=0):
                stop_services(folder)
                shutil.rmtree(folder, ignore_errors=True)


def write_config(running: Config, folder: Path, run: str = "bench", **tables: dict[str, Any]) -> Config:
    """Write and return the configuration of a deployment on running services, with a new topic prefix."""
    deployment = {
        "run": {"id": run, "state_dir": str(folder)},
        "bus": {"servers": running.bus.servers, "prefix": f"bench.{uuid.uuid4().hex[:8]}."},
        "store": {"hosts": list(running.store.hosts), "port": running.store.port},
        **tables,
    }
    (folder / "config.toml").write_text(tomli_w.dumps(deployment), encoding="utf-8")
    return parse(deployment)


def main(command: list[str]) -> int:
    """Run a command with private services; return its exit code."""
    with private_services() as config:
        names = f"{config.bus.servers},{config.store.hosts[0]}:{config.store.port}"
        return subprocess.run(command, env={**os.environ, ENVIRONMENT: names}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
