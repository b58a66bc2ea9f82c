"""A network that is cut loses what it says, and nothing once it is healed."""

import contextlib
import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from tests.faults.network import BROKER, DATABASE, WAYS, Network, network, possible

pytestmark = pytest.mark.skipif(bool(possible()), reason=possible() or "possible")
ASK = "import socket, sys; s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 2); s.close()"


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


def answers(net: Network, host: str, ports: dict[str, int]) -> bool:
    """Say whether a service answers a process in the network."""
    command = [*net.prefix, sys.executable, "-S", "-c", ASK, host, str(ports[host])]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("way", WAYS)
def test_a_way_that_is_cut_has_no_answer_while_the_other_service_has_and_both_have_when_it_is_healed(net, ports, way):
    assert [answers(net, host, ports) for host in (BROKER, DATABASE)] == [True, True]
    net.cut(BROKER, way)
    assert [answers(net, host, ports) for host in (BROKER, DATABASE)] == [False, True]
    net.heal()
    net.cut(DATABASE, way)
    assert [answers(net, host, ports) for host in (BROKER, DATABASE)] == [True, False]
    net.heal()
    assert [answers(net, host, ports) for host in (BROKER, DATABASE)] == [True, True]
