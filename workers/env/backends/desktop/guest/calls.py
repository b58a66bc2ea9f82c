"""Functions that the worker offers to the policy, by name. A function that fails returns its error as text."""

import asyncio
import json
from typing import Any

from workers.env.backends.desktop.guest import commands, file_calls, office_calls

OFFICE_S = 20.0
"""Time limit of a call of LibreOffice, which may show a dialog that waits for an answer."""
RETURNED_CHARACTERS = 2**13
OFFICE = ("/usr/bin/python3", "-E", "-s", "-m", office_calls.__name__)


async def call(name: str, arguments: "dict[str, Any]") -> str:
    """Return what a function returned, or its error."""
    try:
        text = (
            await call_office(name, arguments) if name in office_calls.FUNCTIONS else file_calls.call(name, arguments)
        )
    except (OSError, ValueError, KeyError) as error:
        text = f"Error: {error}"
    return text[:RETURNED_CHARACTERS].encode(errors="replace").decode()


async def call_office(name: str, arguments: "dict[str, Any]") -> str:
    """Return what a function of LibreOffice returned; raise ValueError with its error."""
    try:
        done = await asyncio.to_thread(commands.run, [*OFFICE, name, json.dumps(arguments)], OFFICE_S)
    except commands.CommandTimeout:
        raise ValueError(f"LibreOffice does not answer within {OFFICE_S:g} s") from None
    result = json.loads(done.output or json.dumps({"error": done.error[-RETURNED_CHARACTERS:]}))
    if "error" in result:
        raise ValueError(result["error"])
    return str(result["returned"])
