"""Serve a desktop of ``width`` x ``height`` pixels on the listening socket ``descriptor``."""

import asyncio
import ctypes
import os
import socket
import sys

from aiohttp import web

from workers.env.backends.desktop.guest import input_socket, terminals
from workers.env.backends.desktop.guest.server import Server
from workers.env.backends.desktop.guest.session import DesktopSession

PR_SET_DUMPABLE = 4


async def main(descriptor: int, lifeline: int, width: int, height: int) -> None:
    """Serve until the worker closes its end of the pipe ``lifeline``, or is no more."""
    os.set_inheritable(lifeline, False)
    # This process is the sandbox's first: all others end with it.
    asyncio.get_running_loop().add_reader(lifeline, os._exit, 1)
    # Applications have the same user: without this they could take its socket, or change what it answers.
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    listener = socket.socket(fileno=descriptor)
    listener.set_inheritable(False)
    session = DesktopSession(width, height)
    await input_socket.serve(session)
    runner = web.AppRunner(Server(session).application(), access_log=None)
    await runner.setup()
    await web.SockSite(runner, listener).start()
    await terminals.end_with_too_many()


asyncio.run(main(*map(int, sys.argv[1:])))
