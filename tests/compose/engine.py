"""A Docker engine: the one that runs here, or a private one that ends with the test.

``python -m tests.compose.engine FOLDER`` starts one and waits for the end of its input.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dart_streams.errors import UserError
from tests.compose.own_engine import missing, own_engine


class Engine(NamedTuple):
    """An engine: the environment for `docker`, and the first process of the namespaces of one of the test's own."""

    environment: dict[str, str]
    process: int | None = None

    @property
    def own(self) -> bool:
        return self.process is not None

    def docker(self, *arguments: str, timeout_s: float = 600, **options: object) -> str:
        """Run `docker` and return what it prints; raise :class:`UserError` with its last lines if it fails."""
        done = subprocess.run(
            ["docker", *arguments], env=self.environment, capture_output=True, text=True, timeout=timeout_s, **options
        )  # type: ignore[call-overload]
        if done.returncode:
            raise UserError(f"docker {' '.join(arguments)}:\n{(done.stdout + done.stderr)[-3000:]}")
        return str(done.stdout)

    def entering(self, *namespaces: str) -> list[str]:
        """Return what a command begins with to run in namespaces of the engine.

        ``--net`` has its published ports; in ``--pid`` processes have the numbers that it reports; ``--mount`` has the
        resolver of that network, but a ``/proc`` that is of use in both others only.
        """
        return ["nsenter", "--target", str(self.process), "--wd=.", *namespaces, "--"] if self.own else []


@contextlib.contextmanager
def engine(home: Path) -> Iterator[Engine]:
    """Yield the engine that answers already, or start one with its data, plugins and logs in ``home``."""
    environment = {**os.environ, "DOCKER_CONFIG": str(home / "docker")}
    if shutil.which("docker") is None:
        raise UserError("there is no `docker` here: install it (docker.io), or run `make test-compose` as root")
    if subprocess.run(["docker", "info"], env=environment, capture_output=True, timeout=60).returncode == 0:
        yield Engine(environment)
        return
    if os.geteuid() != 0:
        raise UserError("no Docker engine answers, and only root can start one: start one, or run this as root")
    if missing():
        raise UserError(f"no Docker engine answers, and to start one these are missing: {', '.join(missing())}")
    with own_engine(home) as own:
        yield Engine({**environment, "DOCKER_HOST": own.host}, own.process)


def main() -> None:
    """Start an engine unless one runs, say its address, and end it with the input."""
    try:
        with engine(Path(sys.argv[1]).absolute()) as found:
            sys.stdout.write(f"{found.environment.get('DOCKER_HOST', 'the engine that runs')}\n")
            sys.stdout.flush()
            sys.stdin.read()
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
