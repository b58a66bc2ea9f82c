"""A cut network loses its packets, and none once it is healed."""

import contextlib
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from tests import interfaces
from tests.faults.network import BROKER, DATABASE, WAYS, Network, network, number_of_its_own, possible, remove_leftovers

pytestmark = [
    pytest.mark.skipif(bool(possible()), reason=possible() or "possible"),
    pytest.mark.timeout(900),  # a browser's test may need the interfaces as they are
]
ASK = "import socket, sys; s = socket.create_connection((sys.argv[1], int(sys.argv[2])), float(sys.argv[3])); s.close()"
CUT_S, BOUND_S = 2.0, 60.0
"""How long a service that is cut is asked, which never answers, and how long one that is to answer may take."""


@pytest.fixture(scope="module")
def net() -> Iterator[Network]:
    with network("dart-test") as made:
        yield made


@pytest.fixture(scope="module")
def ports() -> Iterator[dict[str, int]]:
    with contextlib.ExitStack() as stack:
        servers = {
            host: http.server.HTTPServer((host, 0), http.server.BaseHTTPRequestHandler) for host in (BROKER, DATABASE)
        }
        for server in servers.values():
            stack.callback(server.server_close)
            stack.callback(server.shutdown)
            threading.Thread(target=server.serve_forever, daemon=True).start()
        yield {host: server.server_port for host, server in servers.items()}


def test_no_two_networks_have_one_address(net: Network):
    with network("dart-test-other") as other:
        assert not {net.gateway, *net.source.values()} & {other.gateway, *other.source.values()}


def test_networks_of_a_killed_process_are_in_nobodys_way(net: Network, ports, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tests.faults.network.NETWORKS", range(255, 256))  # A number that no other test takes.
    with number_of_its_own() as number:
        left = Network(f"dart-left-{os.getpid()}", number)
        left.host_end = f"dart1h{number}"
        with interfaces.changing():
            remove_leftovers(number)
            left.make()
    try:
        with network("dart-test-next") as made:
            assert answers(made, ports) == [True, True]
    finally:
        left.remove()


def answers(net: Network, ports: dict[str, int], cut: str = "") -> list[bool]:
    """Say which services answer a process in the network; the one that is ``cut`` is not waited for."""
    commands = {
        host: [*net.prefix, sys.executable, "-S", "-c", ASK, host, str(port), str(CUT_S if host == cut else BOUND_S)]
        for host, port in ports.items()
    }
    return [subprocess.run(commands[host], capture_output=True, check=False).returncode == 0 for host in ports]


@pytest.mark.parametrize("way", WAYS)
def test_a_cut_network_path_has_no_answer_until_it_is_healed(net, ports, way):
    assert answers(net, ports) == [True, True]
    net.cut(BROKER, way)
    assert answers(net, ports, cut=BROKER) == [False, True]
    net.heal()
    net.cut(DATABASE, way)
    assert answers(net, ports, cut=DATABASE) == [True, False]
    net.heal()
    assert answers(net, ports) == [True, True]
