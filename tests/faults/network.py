"""A network namespace for a process that can be cut from broker or database, in one direction or both.

A network namespace reaches this machine's loopback services by a pair of virtual interfaces. A direction is cut by a
wrong hardware address for its packets: they leave, and the other end drops them unseen, as on a cable that is cut. Open
connections stay open, new ones get no answer, and what was sent is sent again once the way is whole.
"""

import contextlib
import functools
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from typing import Literal, get_args

from tests import interfaces

BROKER, DATABASE = "127.0.0.1", "127.0.0.2"
"""Where the services of such a circle listen: the ways to them are cut apart from each other."""
Way = Literal["out", "in", "both"]
"""The packets that are lost: those of the process, those for it, or all."""
WAYS: tuple[Way, ...] = get_args(Way)
UNUSED_MAC = "02:00:00:00:00:99"
"""A hardware address that no interface has."""
NETWORKS = range(64, 255)
"""The third numbers of their addresses."""


def ip(*arguments: str) -> None:
    """Run ``ip``; raise subprocess.CalledProcessError with what it says."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@functools.cache
def possible() -> str:
    """Return why this machine can't make networks, empty if it can."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return "network namespaces need root and iproute2"
    try:
        with network("dart-probe"):
            return ""
    except (subprocess.CalledProcessError, OSError) as error:
        return f"network namespaces can't be made here: {getattr(error, 'stderr', error)}"


class Network:
    """A namespace, made by :func:`network`: ``number`` sets it apart from all others on this machine."""

    def __init__(self, name: str, number: int) -> None:
        self.name, self.number = name, number
        self.host_end, self.its_end = f"dart{os.getpid() % 100000}h{number}", "veth"
        self.gateway = f"10.77.{number}.1"
        self.source = {BROKER: f"10.77.{number}.2", DATABASE: f"10.77.{number}.3"}
        self.lost: list[tuple[str, ...]] = []
        """How to give back each way that is cut."""

    @property
    def prefix(self) -> tuple[str, ...]:
        """Return what goes before a command that is to run in it."""
        return ("ip", "netns", "exec", self.name)

    def make(self) -> None:
        """Make the namespace, and the way to this machine's loopback addresses."""
        ip("netns", "add", self.name)
        ip("link", "add", self.host_end, "type", "veth", "peer", "name", self.its_end, "netns", self.name)
        ip("address", "add", f"{self.gateway}/29", "dev", self.host_end)
        ip("link", "set", self.host_end, "up")
        allow = "net.ipv4.conf.{}.route_localnet=1"
        subprocess.run(["sysctl", "-qw", allow.format(self.host_end)], check=True, capture_output=True)
        subprocess.run([*self.prefix, "sysctl", "-qw", allow.format("all")], check=True, capture_output=True)
        inside = ("-n", self.name)
        for source in self.source.values():
            ip(*inside, "address", "add", f"{source}/29", "dev", self.its_end)
        ip(*inside, "link", "set", self.its_end, "up")
        ip(*inside, "link", "set", "lo", "up")
        # Its own loopback interface must not answer for the services' addresses.
        ip(*inside, "address", "del", "127.0.0.1/8", "dev", "lo")
        for service, source in self.source.items():
            ip(*inside, "route", "add", f"{service}/32", "dev", self.its_end, "src", source)

    def cut(self, service: str, way: Way) -> None:
        """Lose all packets between the namespace and a service, in one direction or both."""
        if way in ("out", "both"):
            self._lose("-n", self.name, "neighbor", to=service, via=self.its_end)
        if way in ("in", "both"):
            self._lose("neighbor", to=self.source[service], via=self.host_end)

    def _lose(self, *command: str, to: str, via: str) -> None:
        ip(*command, "replace", to, "lladdr", UNUSED_MAC, "dev", via, "nud", "permanent")
        self.lost.append((*command, "del", to, "dev", via))

    def heal(self) -> None:
        """Let all packets through again; raise subprocess.CalledProcessError if a way stays cut."""
        while self.lost:
            ip(*self.lost[-1])
            self.lost.pop()

    def remove(self) -> None:
        """Remove it; with the namespace both interfaces go, once no process is left in it."""
        for what in (("link", "del", self.host_end), ("netns", "del", self.name)):
            with contextlib.suppress(subprocess.CalledProcessError):
                ip(*what)


def connect(first: Network, second: Network) -> tuple[str, str]:
    """Connect two namespaces by a pair of interfaces that goes with them; return the address of each.

    Programs in them may bind 127.0.0.1, as torchrun does to find a free port, though the address leads elsewhere.
    """
    number = f"10.78.{first.number}"
    with interfaces.changing():
        ip("link", "add", "peer", "netns", first.name, "type", "veth", "peer", "name", "peer", "netns", second.name)
        for place, one in enumerate((first, second), 1):
            ip("-n", one.name, "address", "add", f"{number}.{place}/30", "dev", "peer")
            ip("-n", one.name, "link", "set", "peer", "up")
            subprocess.run([*one.prefix, "sysctl", "-qw", "net.ipv4.ip_nonlocal_bind=1"], check=True)
    return f"{number}.1", f"{number}.2"


@contextlib.contextmanager
def network(name: str) -> Iterator[Network]:
    """Yield a network of its own for processes; it is removed at the end."""
    with number_of_its_own() as number:
        made = Network(f"{name}-{os.getpid()}", number)
        try:
            with interfaces.changing():
                remove_leftovers(number)
                made.make()
            yield made
        finally:
            with interfaces.changing():
                made.remove()


def remove_leftovers(number: int) -> None:
    """Remove the interfaces of a killed process that had this number: they have the same addresses."""
    for _, interface in socket.if_nameindex():
        if re.fullmatch(rf"dart\d+h{number}", interface):
            ip("link", "del", interface)


@contextlib.contextmanager
def number_of_its_own() -> Iterator[int]:
    """Yield a number that no other process of this machine has meanwhile: it has the socket of that name.

    Raises OSError if all are taken.
    """
    with socket.socket(socket.AF_UNIX) as claim:
        for number in NETWORKS:
            if is_bound(claim, f"\0dart-network-{number}"):
                yield number
                return
    raise OSError(f"all {len(NETWORKS)} networks are taken: remove what `ip netns` lists and is not in use")


def is_bound(claim: socket.socket, name: str) -> bool:
    """Bind a socket to a name; return False if another has it."""
    with contextlib.suppress(OSError):
        claim.bind(name)
        return True
    return False
