"""Forwarders of evaluations: each joins what one evaluation connects to on its own loopback with its own machine."""

import asyncio
import contextlib
import functools
import socket
from collections.abc import Sequence

from dart_streams.background import cancel_tasks, wait_first

CHUNK_BYTES = 2**16
CONNECTIONS = 64
"""Maximum number of connections of an evaluation; further ones are closed."""


class ForwardedPorts:
    """Ports of the machine ``host`` for one evaluation, whose name space has made the listeners of equal numbers."""

    def __init__(self, host: str) -> None:
        self.host = host
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self, listeners: Sequence[socket.socket]) -> None:
        """Forward what connects to these listeners until this is closed."""
        self._tasks.add(asyncio.create_task(self._serve(listeners)))

    async def _serve(self, listeners: Sequence[socket.socket]) -> None:
        for listener in listeners:
            forward = functools.partial(self._forward, listener.getsockname()[1])
            self._servers.append(await asyncio.start_server(forward, sock=listener))

    async def _forward(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if len(self._tasks) <= CONNECTIONS:
                its_reader, its_writer = await asyncio.open_connection(self.host, port)
                with contextlib.closing(its_writer):
                    await wait_first(copy_stream(its_reader, writer), copy_stream(reader, its_writer))
        except OSError:
            pass  # An end has closed the connection, or nothing listens at the machine.
        finally:
            self._tasks.discard(task)
            writer.close()

    async def close(self) -> None:
        """Close the listeners and all connections; never raises."""
        for server in self._servers:
            server.close()
        await cancel_tasks(*self._tasks)


async def copy_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy what one end says to the other until it says no more."""
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
