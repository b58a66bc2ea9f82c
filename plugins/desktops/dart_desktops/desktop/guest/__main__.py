"""Entry point: serve a desktop of ``width`` x ``height`` pixels on the listening socket ``descriptor``."""

import asyncio
import ctypes
import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor

from aiohttp import web

from dart_desktops.desktop.guest import input_socket
from dart_desktops.desktop.guest.processes import end_with_too_many_terminals
from dart_desktops.desktop.guest.server import Server
from dart_desktops.desktop.guest.session import DesktopSession

PR_SET_DUMPABLE = 4
CONCURRENCY = 16
"""Maximum number of concurrent commands."""


async def main(descriptor: int, lifeline: int, width: int, height: int) -> None:
    """Serve until the worker closes its end of the pipe ``lifeline`` or dies."""
    os.set_inheritable(lifeline, False)
    # All other processes of the sandbox end with this one, which is its first.
    asyncio.get_running_loop().add_reader(lifeline, os._exit, 1)
    # Applications have the same user: otherwise they could take its socket or change its responses.
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(CONCURRENCY))
    listener = socket.socket(fileno=descriptor)
    listener.set_inheritable(False)
    session = DesktopSession(width, height)
    await input_socket.serve(session)
    runner = web.AppRunner(Server(session).application(), access_log=None)
    await runner.setup()
    await web.SockSite(runner, listener).start()
    await end_with_too_many_terminals()


asyncio.run(main(*map(int, sys.argv[1:])))
