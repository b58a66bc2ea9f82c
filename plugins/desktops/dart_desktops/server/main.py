"""The desktop server: leases desktops, and serves OSWorld's HTTP API for each.

============  ==================================================================================================
consumes      HTTP on loopback: the lease server's port, and one for each desktop; connections to its browser and VLC
produces      one line of JSON on standard output, once it listens: ``leases``, ``desktops``, ``token_file``
waits for     clients
unblocked by  a client that releases its lease, or the expiry of a lease
============  ==================================================================================================

It needs neither broker nor database.
"""

import asyncio
import contextlib
import functools
import json
import secrets
import socket
import sys
from pathlib import Path

import structlog
from aiohttp import web

from dart_desktops.desktop.sandbox import require_programs, sweep
from dart_desktops.server.gateway import Gateway
from dart_desktops.server.leases import TOKEN_BYTES
from dart_desktops.server.ports import GUEST_PORTS, PortForwarder
from dart_desktops.server.server import LeaseServer
from dart_desktops.server.slots import Slot
from dart_streams.config import Config
from dart_streams.connection.auth import read_secret
from dart_streams.disk_room import make_private
from dart_streams.http_bounds import serve_bounded
from workers.runtime import lifecycle

CONCURRENT_PREPARATIONS = 2
"""Maximum number of concurrent preparations: more would only delay each other."""
HOST = "127.0.0.1"

log = structlog.get_logger()


async def connect(config: Config, worker_id: str, resources: contextlib.AsyncExitStack) -> lifecycle.Worker:
    """Listen, and return the worker, which prepares desktops while it serves.

    Raises ServiceUnavailable if a program is missing, ConfigError if the token cannot be read.
    """
    require_programs()
    sweep()
    own, desktop = config.desktops, config.env.desktop
    token, token_file = token_of(config, worker_id)
    preparing = asyncio.Semaphore(CONCURRENT_PREPARATIONS)
    size = desktop.width, desktop.height
    slots = [Slot(number, size, desktop.call_timeout_s, preparing) for number in range(own.slots)]
    listeners = [resources.enter_context(socket.create_server((HOST, 0))) for _ in slots]
    urls = [url_of(listener) for listener in listeners]
    inner = [{name: resources.enter_context(socket.create_server((HOST, 0))) for name in GUEST_PORTS} for _ in slots]
    numbers = [{name: listener.getsockname()[1] for name, listener in of_slot.items()} for of_slot in inner]
    server = LeaseServer(slots, urls, token, own.lease_s, numbers)
    for slot, of_slot in zip(slots, inner, strict=True):
        for name, listener in of_slot.items():
            forwarder = PortForwarder(GUEST_PORTS[name], functools.partial(server.open_port, slot), bool(token))
            await forwarder.serve(listener, resources)
    for slot, listener in zip(slots, listeners, strict=True):
        gateway = Gateway(functools.partial(server.open_for, slot))
        await serve(gateway.application(), listener, resources)
    leases = resources.enter_context(socket.create_server((HOST, own.port)))
    await serve(server.application(), leases, resources)

    async def announce(stop: asyncio.Event) -> None:
        addresses = {"leases": url_of(leases), "desktops": urls, "token_file": token_file}
        sys.stdout.write(json.dumps(addresses) + "\n")
        sys.stdout.flush()
        log.info("serving desktops", slots=len(slots), leases=url_of(leases))
        await stop.wait()

    background = {f"desktop {slot.number}": slot.run for slot in slots}
    return lifecycle.Worker(announce, {**background, "expiry": server.expire})


def token_of(config: Config, worker_id: str) -> tuple[str, str | None]:
    """Return the server's token, empty if it asks for none, and the file of a new token."""
    own = config.desktops
    if not own.ask_token:
        return "", None
    if own.token:
        return read_secret(own.token, "desktops.token"), None
    path = (Path(config.run.state_dir) / "desktops" / f"{worker_id}.token").absolute()
    make_private(path.parent)
    path.unlink(missing_ok=True)
    path.touch(0o600, exist_ok=False)
    token = secrets.token_urlsafe(TOKEN_BYTES)
    path.write_text(token, encoding="utf-8")
    return token, str(path)


async def serve(application: web.Application, listener: socket.socket, resources: contextlib.AsyncExitStack) -> None:
    """Serve until the resources are closed; a client that disconnects stops waiting for a desktop."""
    await resources.enter_async_context(serve_bounded(application, listener, handler_cancellation=True))


def url_of(listener: socket.socket) -> str:
    """Return the URL of a listening socket."""
    return f"http://{HOST}:{listener.getsockname()[1]}"
