"""The socket by which programs of the sandbox send input: one line of JSON in, one line out.

The socket is abstract, so only this network namespace has it. It permits nothing that the X server would not.
"""

import asyncio
import json
from typing import Any

from dart_desktops.desktop.guest.display import DISPLAY_ERRORS, InputError
from dart_desktops.desktop.guest.session import DesktopSession, SessionError

NAME = "\0dart-desktop-input"


async def serve(session: DesktopSession) -> None:
    """Serve input for the current session."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(json.dumps(perform_line(session, line)).encode() + b"\n")
                await writer.drain()
        finally:
            # After any error: otherwise the client would wait on an open connection.
            writer.close()

    await asyncio.start_unix_server(answer, NAME, limit=2**22)


def perform_line(session: DesktopSession, line: bytes) -> "dict[str, Any]":
    """Perform the ``events`` of a line; return pointer position and screen size, or the error."""
    try:
        request = json.loads(line)
        display = session.shown
        display.perform(request["events"], request.get("apart", True), request.get("begins", True))
        return {"position": display.pointer(), "size": list(display.frames.size)}
    except (InputError, SessionError, ValueError, KeyError, TypeError, *DISPLAY_ERRORS) as error:
        return {"error": f"{type(error).__name__}: {error}"}
