"""Ports of a slot that lead into its leased desktop: DevTools of its browser and VLC, which OSWorld's evaluators ask.

Their protocols have no token. So with a token only processes of this server's user, or root, are let through.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp

from dart_desktops.server.gateway import GatewayTarget

GUEST_PORTS = {"chromium_port": 9222, "vlc_port": 8080}
"""Ports of the desktop, by their names in a lease."""
CHUNK_BYTES = 2**16
CONNECTIONS = 64
"""Maximum number of connections to a port; further ones are closed."""
CONNECT_S = 15.0
CONNECTION_TABLE = Path("/proc/net/tcp")
LOOKUPS = 3
"""Times that the table is read: a read of a long table misses a row if others change meanwhile."""


class PortForwarder:
    """Joins each connection with one to a port of the desktop that ``open_for`` returns."""

    def __init__(self, port: int, open_for: Callable[[], GatewayTarget], private: bool) -> None:
        self.port = port
        self.open_for = open_for
        self.private = private
        self.open = 0

    async def serve(self, listener: socket.socket, resources: contextlib.AsyncExitStack) -> None:
        """Serve on a listening socket until the resources are closed."""
        server = await asyncio.start_server(self.forward, sock=listener)
        resources.callback(server.close)

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward a connection until one side closes it; refuse it by closing it at once."""
        self.open += 1
        try:
            if self.open <= CONNECTIONS and self._is_permitted(writer):
                await self._forward(reader, writer)
        except (OSError, aiohttp.ClientError, TimeoutError):
            pass  # An end has closed the connection, or nothing listens in the desktop.
        finally:
            self.open -= 1
            writer.close()

    def _is_permitted(self, writer: asyncio.StreamWriter) -> bool:
        if not self.private:
            return True
        client, server = writer.get_extra_info("peername"), writer.get_extra_info("sockname")
        for _ in range(LOOKUPS):
            if (owner := owner_of(client, server, CONNECTION_TABLE.read_text(encoding="utf-8"))) is not None:
                return owner in {0, os.geteuid()}
        return False

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = self.open_for()
        if target.sandbox is None:
            return
        bound = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
        try:
            async with (
                aiohttp.ClientSession(connector=aiohttp.UnixConnector(target.sandbox.socket), timeout=bound) as session,
                session.ws_connect(f"http://desktop/tunnel/{self.port}", compress=0) as tunnel,
            ):
                inward = asyncio.create_task(send_in(reader, tunnel))
                try:
                    async for message in tunnel:
                        writer.write(message.data)
                        await writer.drain()
                finally:
                    inward.cancel()
        finally:
            target.release()


async def send_in(reader: asyncio.StreamReader, tunnel: "aiohttp.ClientWebSocketResponse[Any]") -> None:
    """Send what a client says until it closes its connection, then close the tunnel."""
    with contextlib.suppress(OSError, aiohttp.ClientError):
        while data := await reader.read(CHUNK_BYTES):
            await tunnel.send_bytes(data)
    await tunnel.close()


def owner_of(client: tuple[str, int], server: tuple[str, int], table: str) -> int | None:
    """Return the user of the process that holds the client's end of an IPv4 connection, None if there is none.

    The kernel lists an end that no process holds (its inode is 0) under user 0, whoever has opened it.
    """
    ends = [f"{socket.inet_aton(host)[::-1].hex().upper()}:{port:04X}" for host, port in (client, server)]
    rows = (line.split() for line in table.splitlines()[1:])
    return next((int(row[7]) for row in rows if row[1:3] == ends and row[9] != "0"), None)
