"""The network of a company: its proxy opens TLS (tests/compose/proxy.py), and builds have to go through it."""

import ipaddress
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.compose.engine import Engine


class Company(NamedTuple):
    """A proxy: its address for a build, its authority's certificate, and the hosts that it was asked for."""

    proxy: str
    authority: Path
    asked: list[str]


@contextmanager
def company(engine: Engine, folder: Path) -> Iterator[Company]:
    """Run a proxy where the engine's builds reach it, at the gateway of its bridge."""
    # A bridge that is new has no gateway yet in its description; it is the first address.
    subnet = engine.docker("network", "inspect", "bridge", "--format", "{{(index .IPAM.Config 0).Subnet}}")
    gateway = str(ipaddress.ip_network(subnet.strip())[1])
    command = [sys.executable, "-m", "tests.compose.proxy", gateway, str(folder)]
    process = subprocess.Popen([*engine.entering("--net", "--mount"), *command], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        port = process.stdout.readline().strip()
        assert port, "the proxy did not start"
        asked: list[str] = []
        threading.Thread(target=listen, args=(process.stdout, asked), daemon=True).start()
        yield Company(f"http://{gateway}:{port}", folder / "ca.pem", asked)
    finally:
        process.terminate()
        process.wait(300)


def listen(lines: Iterator[str], asked: list[str]) -> None:
    asked.extend(line.strip() for line in lines)
