"""Serve a desktop of ``width`` x ``height`` pixels on the listening socket with file descriptor ``fd``."""

import asyncio
import ctypes
import socket
import sys

from aiohttp import web

from workers.env.desktop.guest import input_socket
from workers.env.desktop.guest.server import Server
from workers.env.desktop.guest.session import DesktopSession

PR_SET_DUMPABLE = 4


async def main(descriptor: int, width: int, height: int) -> None:
    """Serve until killed."""
    # Applications have the same user: without this they could take its socket, or change what it answers.
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    listener = socket.socket(fileno=descriptor)
    listener.set_inheritable(False)
    session = DesktopSession(width, height)
    await input_socket.serve(session)
    runner = web.AppRunner(Server(session).application(), access_log=None)
    await runner.setup()
    await web.SockSite(runner, listener).start()
    await asyncio.Event().wait()


asyncio.run(main(*map(int, sys.argv[1:])))
