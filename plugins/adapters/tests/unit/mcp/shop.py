"""A small server of the package ``mcp``, over stdio: notes in its folder, and tools that fail, hang or end."""

import os
import sys
import time
from pathlib import Path

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("shop")


@server.tool()
def add(first: int, second: int) -> int:
    """Add two numbers."""
    return first + second


@server.tool()
def note(text: str) -> str:
    """Append a line to the notes, and return all of them."""
    notes = Path("notes.txt")
    with notes.open("a") as file:
        file.write(f"{text}\n")
    return notes.read_text()


@server.tool()
def fail(why: str) -> str:
    """Raise an error."""
    raise ToolError(why)


@server.tool()
def hang() -> str:
    """Never return."""
    time.sleep(3600)
    return ""


@server.tool()
def leave() -> str:
    """End the process."""
    os._exit(3)


@server.tool()
def folder() -> str:
    """Return process id and folder."""
    return f"{os.getpid()} {Path.cwd()}"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(" ".join(sys.argv[1:]))
    server.run()
