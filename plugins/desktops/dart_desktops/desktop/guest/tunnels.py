"""Tunnels to ports of the sandbox, for clients of its browser (DevTools) and of VLC, through the server's socket."""

import asyncio
import contextlib

from aiohttp import WSMsgType, web

PORTS = frozenset({9222, 8080})
CHUNK_BYTES = 2**16


async def open_tunnel(request: web.Request) -> web.StreamResponse:
    """Join a WebSocket with a connection to a port; 502 if nothing listens there."""
    port = int(request.match_info["port"])
    if port not in PORTS:
        return web.Response(status=404)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return web.Response(status=502)
    socket = web.WebSocketResponse(compress=False)
    try:
        await socket.prepare(request)
        outward = asyncio.create_task(send_out(reader, socket))
        try:
            async for message in socket:
                if message.type is WSMsgType.BINARY:
                    writer.write(message.data)
                    await writer.drain()
        finally:
            outward.cancel()
    except OSError:
        pass  # An end has closed the connection, which closes the other one.
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    return socket


async def send_out(reader: asyncio.StreamReader, socket: web.WebSocketResponse) -> None:
    """Send what a port says until it closes the connection, then close the WebSocket."""
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            await socket.send_bytes(data)
    await socket.close()
