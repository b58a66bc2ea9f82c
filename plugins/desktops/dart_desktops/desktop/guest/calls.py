"""Functions that the worker offers to the policy, by name. A function that fails returns its error as text."""

import asyncio
import json
from typing import Any

from dart_desktops.desktop.guest import commands, file_calls, office_calls

LIMIT_S = 20.0
"""Time limit of a command, and of a call of LibreOffice, which may show a dialog that waits for an answer."""
RETURNED_CHARACTERS = 2**13
OFFICE = ("/usr/bin/python3", "-E", "-s", "-m", office_calls.__name__)


async def call(name: str, arguments: "dict[str, Any]") -> str:
    """Return what a function returned, or its error."""
    try:
        if name in office_calls.FUNCTIONS:
            text = await call_office(name, arguments)
        elif name == "shell.run":
            text = await run_shell(arguments["command"])
        else:
            text = file_calls.call(name, arguments)
    except (OSError, ValueError, KeyError) as error:
        text = f"Error: {error}"
    return text[:RETURNED_CHARACTERS].encode(errors="replace").decode()


async def run_shell(command: str) -> str:
    """Return the output of a command line in the home, and its exit code if that is not 0.

    Raises TimeoutError if it does not end in time; its process group is killed then.
    """
    done = await asyncio.to_thread(
        commands.run, commands.command_arguments(command, True), LIMIT_S, merged=True, folder=str(file_calls.HOME)
    )
    failure = f"\nExit code {done.returncode}." if done.returncode else ""
    return done.output[: RETURNED_CHARACTERS - len(failure)] + failure


async def call_office(name: str, arguments: "dict[str, Any]") -> str:
    """Return what a function of LibreOffice returned; raise ValueError with its error."""
    try:
        done = await asyncio.to_thread(commands.run, [*OFFICE, name, json.dumps(arguments)], LIMIT_S)
    except commands.CommandTimeout:
        raise ValueError(f"LibreOffice does not answer within {LIMIT_S:g} s") from None
    result = json.loads(done.output or json.dumps({"error": done.error[-RETURNED_CHARACTERS:]}))
    if "error" in result:
        raise ValueError(result["error"])
    return str(result["returned"])
