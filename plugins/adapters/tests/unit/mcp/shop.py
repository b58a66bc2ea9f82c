"""A small server of the package ``mcp``, over stdio: notes in its folder, and tools that fail, hang or end."""

import os
import sys
import time
from pathlib import Path

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("shop")
WIRE = os.dup(1)
"""The client's end: the package diverts the standard output."""


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
def spoil(kind: str, context: Context) -> str:
    """Write an answer that cannot be read, and never return."""
    text, nested = (
        '"resultType":"complete","structuredContent":{"result":""},"content":[{"type":"text","text":%s}]',
        "[" * 3_000 + "]" * 3_000,
    )
    started = f'{{"jsonrpc":"2.0","id":{context.request_id},'
    lines = {
        "half": started + '"result":{' + text % '"a \\ud83d b"' + "}}",
        "nested": started + '"result":{"structuredContent":' + nested + "}}",
        "nested, id last": f'{{"jsonrpc":"2.0","result":{nested},"id":{context.request_id}}}',
        "cut": started + '"result":{',
        "no result": started + '"outcome":{}}',
        "no content": started + '"result":{"resultType":"complete","content":[{"type":"text","text":7}]}}',
        "no structure": started + '"result":{"resultType":"complete","content":[]}}',
        "number": started + '"result":7}',
        "bytes": started + '"result":{' + text % '"a \udced\udca0\udcbd b"' + "}}",
        "printed": "loading 100%\n{not json}\n" + started + '"result":{' + text % '"done"' + "}}",
    }
    os.write(WIRE, lines[kind].encode(errors="surrogateescape") + b"\n")
    time.sleep(3600)
    return ""


@server.tool()
def folder() -> str:
    """Return process id and folder."""
    return f"{os.getpid()} {Path.cwd()}"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(" ".join(sys.argv[1:]))
    server.run()
