"""A Docker engine for the test: the one that runs here, or else one of the test's own, ended with the test.

``python -m tests.compose.engine FOLDER`` tells by its exit code whether there can be one here, and if not, why.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dart_streams.errors import UserError

UP_S = 60
DOWN_S = 60


class Engine(NamedTuple):
    """An engine: the environment for `docker`, and whether it is the test's own."""

    environment: dict[str, str]
    own: bool

    def docker(self, *arguments: str, timeout_s: float = 600, **options: object) -> str:
        """Run `docker` and return what it prints; raise :class:`UserError` with its last lines if it fails."""
        done = subprocess.run(
            ["docker", *arguments], env=self.environment, capture_output=True, text=True, timeout=timeout_s, **options
        )  # type: ignore[call-overload]
        if done.returncode:
            raise UserError(f"docker {' '.join(arguments)}:\n{(done.stdout + done.stderr)[-3000:]}")
        return str(done.stdout)


@contextlib.contextmanager
def engine(home: Path) -> Iterator[Engine]:
    """Yield the engine that answers already, or start one with its data, plugins and socket in ``home``."""
    environment = {**os.environ, "DOCKER_CONFIG": str(home / "docker")}
    if shutil.which("docker") is None:
        raise UserError("there is no `docker` here: install it (docker.io), or run `make test-compose` as root")
    if subprocess.run(["docker", "info"], env=environment, capture_output=True, timeout=60).returncode == 0:
        yield Engine(environment, own=False)
        return
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        raise UserError("no Docker engine answers, and none can be started: start one, or run this as root")
    socket = home / "run" / "docker.sock"
    socket.parent.mkdir(parents=True, exist_ok=True)
    environment["DOCKER_HOST"] = f"unix://{socket}"
    with (home / "dockerd.log").open("w") as log:
        daemon = subprocess.Popen(command(home, socket), stdout=log, stderr=log, start_new_session=True)
    try:
        wait_for(daemon, environment, home / "dockerd.log")
        yield Engine(environment, own=True)
    finally:
        daemon.send_signal(signal.SIGTERM)
        try:
            daemon.wait(DOWN_S)
        except subprocess.TimeoutExpired:
            os.killpg(daemon.pid, signal.SIGKILL)


def command(home: Path, socket: Path) -> list[str]:
    return [
        "dockerd",
        f"--host=unix://{socket}",
        f"--data-root={home / 'data'}",
        f"--exec-root={home / 'run' / 'exec'}",
        f"--pidfile={home / 'run' / 'docker.pid'}",
    ]


def wait_for(daemon: "subprocess.Popen[bytes]", environment: dict[str, str], log: Path) -> None:
    """Wait until the engine answers; raise :class:`UserError` with the end of its log if it does not."""
    deadline = time.monotonic() + UP_S
    while subprocess.run(["docker", "info"], env=environment, capture_output=True).returncode:
        if daemon.poll() is not None or time.monotonic() > deadline:
            raise UserError(f"dockerd did not start: {log.read_text()[-2000:]}")
        time.sleep(0.5)


def main() -> None:
    """Start and end an engine, unless one runs."""
    try:
        with engine(Path(sys.argv[1]).absolute()):
            pass
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
