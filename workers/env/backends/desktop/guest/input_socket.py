"""The socket by which programs of the sandbox send input: one line of JSON in, one line out.

It is abstract, so it is this network namespace's only. It gives a program nothing that the X server would not.
"""

import asyncio
import json
from typing import Any

from workers.env.backends.desktop.guest.display import DISPLAY_ERRORS, InputError
from workers.env.backends.desktop.guest.session import DesktopSession, SessionError

NAME = "\0dart-desktop-input"


async def serve(session: DesktopSession) -> None:
    """Serve input for the session of the time."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(json.dumps(perform_line(session, line)).encode() + b"\n")
                await writer.drain()
        finally:
            # Whatever went wrong here: nobody waits for an answer on an open connection.
            writer.close()

    await asyncio.start_unix_server(answer, NAME, limit=2**22)


def perform_line(session: DesktopSession, line: bytes) -> "dict[str, Any]":
    """Carry out the ``events`` of a line; return where the pointer is and the screen's size, or what was wrong."""
    try:
        wanted = json.loads(line)
        display = session.shown
        display.perform(wanted["events"], wanted.get("apart", True))
        return {"position": display.pointer(), "size": list(display.frames.size)}
    except (InputError, SessionError, ValueError, KeyError, TypeError, *DISPLAY_ERRORS) as error:
        return {"error": f"{type(error).__name__}: {error}"}
