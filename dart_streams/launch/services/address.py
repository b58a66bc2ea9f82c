"""Where a local service is to listen, from the address that clients are configured with."""

import ipaddress

from dart_streams.errors import ConfigError


def local_address(server: str, setting: str) -> tuple[str, int]:
    """Split ``host:port`` of one server on this machine into an IPv4 address and a port.

    Raises
    ------
    ConfigError
        If it names several servers, no port, or another machine.
    """
    host, _, port = server.strip().rpartition(":")
    if "," in server or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(
            f"{setting} is {server!r}: the local services need one host:port, for instance 127.0.0.1:9092"
        )
    if host == "localhost":
        host = "127.0.0.1"
    try:
        is_local = ipaddress.IPv4Address(host).is_loopback
    except ValueError:
        is_local = False
    if not is_local:
        raise ConfigError(
            f"{setting} names {host}, which is not a loopback address: `dart-streams up` starts services on this "
            "machine only. Start the service there, or set 127.0.0.1"
        )
    return host, int(port)
