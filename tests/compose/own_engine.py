"""A private Docker engine in namespaces that end with it.

Its bridges, firewall rules and policies are in a network namespace, its mounts in a mount namespace, and its processes
in a PID namespace whose first process it is. slirp4netns connects them to the network from outside, by sockets of its
own: this machine forwards nothing and has no rule for it. All of it ends by the kernel's hand, also when the test is
killed, for each process dies with its parent.
"""

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from console.launch.services.lock import one_at_a_time
from dart_streams.errors import UserError

NEEDED = ("dockerd", "slirp4netns", "unshare", "setpriv", "nsenter", "ip")
CGROUPS = Path("/sys/fs/cgroup")
RUN = Path("/run")
"""Where the engine's sockets are: those of a long path are refused, and a checkout may have one."""
WITH_ITS_PARENT = ("setpriv", "--pdeathsig", "KILL", "--")
NAMESPACES = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--")
INITIALLY = 'ip link set lo up && mount --bind "$1" /etc/resolv.conf && shift && exec "$@"'
RESOLVER = "10.0.2.3"
"""slirp4netns answers there, and asks whom this machine asks; that may be itself, which no namespace reaches."""
UP_S = 300
DOWN_S = 120
POLL_S = 0.1


class Own(NamedTuple):
    """An engine that runs: the address for `docker`, and its first process, as this machine numbers it."""

    host: str
    process: int


def missing() -> list[str]:
    """Return which of the programs that it needs are not here."""
    return [program for program in NEEDED if shutil.which(program, path=environment()["PATH"]) is None]


def environment() -> dict[str, str]:
    """Return the environment of an engine: who became root by `su` does not find iptables."""
    return {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}


def name_of(home: Path) -> str:
    """Return what the engine of a home is called outside of it: its folder of sockets, its control group."""
    return f"dart-compose-{hashlib.sha256(str(home.absolute()).encode()).hexdigest()[:8]}"


@contextlib.contextmanager
def own_engine(home: Path) -> Iterator[Own]:
    """Run an engine with its data in ``home``; raise :class:`UserError` if it does not start."""
    name = name_of(home)
    run = RUN / name
    with one_at_a_time(home, wait_s=1), (home / "dockerd.log").open("w") as log:
        sweep(run, name)
        run.mkdir()
        resolver = run / "resolv.conf"
        resolver.write_text(f"nameserver {RESOLVER}\n")
        initially = ["sh", "-c", INITIALLY, "sh", str(resolver)]
        outer = subprocess.Popen(
            [*WITH_ITS_PARENT, *NAMESPACES, *initially, *command(home, run, name)],
            env=environment(),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            own = Own(f"unix://{run / 'docker.sock'}", first_process(outer))
            with network(own.process, home / "slirp4netns.log"):
                wait_until_it_answers(own, outer, home / "dockerd.log")
                yield own
        finally:
            end(outer)
            sweep(run, name)


def command(home: Path, run: Path, name: str) -> list[str]:
    return [
        "dockerd",
        f"--host=unix://{run / 'docker.sock'}",
        f"--data-root={home.absolute() / 'data'}",
        f"--exec-root={run / 'exec'}",
        f"--pidfile={run / 'docker.pid'}",
        # systemd, where there is one, is asked for nothing: it would keep what the engine forgets.
        "--exec-opt=native.cgroupdriver=cgroupfs",
        f"--cgroup-parent=/{name}",
    ]


def first_process(outer: "subprocess.Popen[bytes]") -> int:
    children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
    deadline = time.monotonic() + UP_S
    while time.monotonic() < deadline and outer.poll() is None:
        with contextlib.suppress(FileNotFoundError):
            if found := children.read_text().split():
                return int(found[0])
        time.sleep(POLL_S)
    raise UserError(f"unshare started nothing (exit code {outer.poll()})")


@contextlib.contextmanager
def network(process: int, log: Path) -> Iterator[None]:
    """Connect the network namespace of a process to what this machine reaches, but not to its loopback."""
    ready, says_ready = os.pipe()
    options = ["--configure", "--mtu=65520", "--disable-host-loopback", f"--ready-fd={says_ready}"]
    with log.open("w") as file:
        connected = subprocess.Popen(
            [*WITH_ITS_PARENT, "slirp4netns", *options, str(process), "tap0"],
            stdout=file,
            stderr=file,
            start_new_session=True,
            pass_fds=[says_ready],
        )
    os.close(says_ready)
    try:
        with os.fdopen(ready, "rb") as said:
            if not said.read():
                raise UserError(f"slirp4netns, the engine's network, did not start: {log.read_text()[-1000:]}")
        yield
    finally:
        connected.terminate()
        connected.wait(DOWN_S)


def wait_until_it_answers(own: Own, outer: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + UP_S
    while subprocess.run(["docker", "--host", own.host, "info"], capture_output=True).returncode:
        if outer.poll() is not None or time.monotonic() > deadline:
            raise UserError(f"dockerd did not start: {log.read_text()[-2000:]}")
        time.sleep(POLL_S)


def end(outer: "subprocess.Popen[bytes]") -> None:
    """End the engine in order, or else by its namespaces: the kernel then ends all that is in them."""
    with contextlib.suppress(UserError, subprocess.TimeoutExpired):
        subprocess.run(["kill", "-TERM", str(first_process(outer))], capture_output=True)
        outer.wait(DOWN_S)
    outer.send_signal(signal.SIGKILL)
    outer.wait()


def sweep(run: Path, name: str) -> None:
    """Remove what no namespace ends: the folder of the sockets, and the control groups, empty by now."""
    shutil.rmtree(run, ignore_errors=True)
    for top in [*CGROUPS.glob(name), *CGROUPS.glob(f"*/{name}")]:
        for folder in sorted((path for path in [top, *top.rglob("*")] if path.is_dir()), reverse=True):
            with contextlib.suppress(OSError):
                folder.rmdir()
