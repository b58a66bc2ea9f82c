"""A process that serves MCP (modelcontextprotocol.io) on its standard streams, by the client of the package ``mcp``."""

import asyncio
import contextlib
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from typing import IO, Any

import structlog
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp_types import CONNECTION_CLOSED, CallToolResult, TextContent
from pydantic import ValidationError

from dart_streams.actions.offered import offer_call
from dart_streams.background import cancel_tasks
from dart_streams.config.env import ToolServer
from topics.values import OfferedCall
from workers.env.environment import EnvironmentFault

STOP_S = 15.0
"""Time limit of an end: the client waits, terminates and kills within 7 s."""
ERROR_CHARACTERS = 300
ANSWER = re.compile(r"\A\s*\{[^{\[]*\"id\"\s*:|\"id\"\s*:\s*\d+\s*\}\s*\Z")
"""A line that answers a request; other lines that cannot be read are none of it, such as what a program prints."""
MOST_PAGES = 20
"""Maximum pages of a server's list of tools."""

log = structlog.get_logger()


class McpServer:
    """A server process of one episode. Each call of it takes at most ``call_timeout_s``; a longer one is a fault."""

    def __init__(self, settings: ToolServer, call_timeout_s: float) -> None:
        self.settings = settings
        self.call_timeout_s = call_timeout_s
        self._connection: asyncio.Task[None] | None = None
        self._client: Client | None = None
        self._ending = asyncio.Event()
        self._limit = asyncio.timeout(None)
        self._unread = ""

    async def start(self) -> list[OfferedCall]:
        """Start the process anew, and return its tools; raise EnvironmentFault if it does not serve."""
        await self.stop()
        self._ending = asyncio.Event()
        connected: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._connection = asyncio.create_task(self._connect(connected), name=f"tools of {self.settings.name}")
        try:
            async with self._bounded():
                first: set[asyncio.Future[Any]] = {connected, self._connection}
                await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
                if not connected.done():
                    await self._connection
                    raise self._fault("has ended")
                self._client = connected.result()
                return await self._offers(self._client)
        except (TimeoutError, ValidationError) as error:
            if reason := self._reason(error):
                raise self._fault(f"gives an answer that can't be read: {reason}") from None
            raise self._fault(f"does not start within {self.call_timeout_s:g} s") from None
        except MCPError as error:
            raise self._fault(f"lists no tools: {error.message}") from None

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """Return what a tool returned, or its error, as text; raise EnvironmentFault if the server does not answer."""
        if self._client is None:
            raise self._fault("was not started")
        try:
            async with self._bounded():
                return text_of(await self._client.call_tool(tool, dict(arguments)))
        except (TimeoutError, ValidationError, RuntimeError) as error:  # RuntimeError: not of the tool's output schema
            if reason := self._reason(error):
                return f"Error: the answer of {tool} can't be read: {reason}"
            raise self._fault(f"does not answer {tool} within {self.call_timeout_s:g} s") from None
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                raise self._fault(f"has ended during {tool}") from None
            return f"Error: {error.message}"

    async def stop(self) -> None:
        """End the process, and remove its folder; never raises."""
        connection, connected = self._connection, self._client is not None
        self._connection = self._client = None
        if connection is not None:
            self._ending.set()
            if not connected:
                connection.cancel()
            await asyncio.wait({connection}, timeout=STOP_S)
            await cancel_tasks(connection)

    def _bounded(self) -> asyncio.Timeout:
        """Return the time limit of a request, which :meth:`_notice` ends early."""
        self._unread, self._limit = "", asyncio.timeout(self.call_timeout_s)
        return self._limit

    def _reason(self, error: Exception) -> str:
        """Return the reason why an answer was not read, empty if there was none in time."""
        if isinstance(error, TimeoutError):
            return self._unread
        return error.errors(include_url=False)[0]["msg"] if isinstance(error, ValidationError) else str(error)

    async def _notice(self, message: object) -> None:
        """Let the request fail whose answer cannot be read, as the client leaves it waiting."""
        if not isinstance(message, ValidationError) or self._limit.when() is None or self._limit.expired():
            return
        error = message.errors(include_url=False)[0]
        given = error["input"]
        if ANSWER.search(given) if isinstance(given, str) else isinstance(given, dict) and "id" in given:
            self._unread = error["msg"]
            self._limit.reschedule(asyncio.get_running_loop().time())

    async def _connect(self, connected: "asyncio.Future[Client]") -> None:
        """Hold the connection until the end: its contexts have to be entered and left by one task."""
        with (
            tempfile.TemporaryDirectory(prefix="dart-tools-") as folder,
            tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors,
        ):
            command, *arguments = [*with_parent(), *self.settings.command]
            process = StdioServerParameters(
                command=command, args=arguments, cwd=folder, encoding_error_handler="replace"
            )
            try:
                async with Client(stdio_client(process, errlog=errors), message_handler=self._notice) as client:
                    connected.set_result(client)
                    await self._ending.wait()
            except (OSError, MCPError, ExceptionGroup) as failed:
                if not self._ending.is_set():
                    raise self._fault(f"does not serve: {first_error(failed)} {read_end(errors)}".rstrip()) from None

    async def _offers(self, client: Client) -> list[OfferedCall]:
        tools, cursor = [], None
        for _ in range(MOST_PAGES):
            page = await client.list_tools(cursor=cursor)
            tools += page.tools
            if (cursor := page.next_cursor) is None:
                break
        wanted = set(self.settings.only)
        if unknown := wanted - {tool.name for tool in tools}:
            raise self._fault(f"has no tool {', '.join(sorted(unknown))}")
        return [
            offer_call(f"{self.settings.name}.{tool.name}", tool.description or "", tool.input_schema)
            for tool in tools
            if not wanted or tool.name in wanted
        ]

    def _fault(self, reason: str) -> EnvironmentFault:
        return EnvironmentFault(f"tool server {self.settings.name}: it {reason}")


def with_parent() -> list[str]:
    """Return the beginning of a command that ends with this process, also if it is killed (Linux)."""
    return ["setpriv", "--pdeathsig", "KILL", "--"] if sys.platform == "linux" and shutil.which("setpriv") else []


def text_of(result: CallToolResult) -> str:
    """Return a result as text; other content than texts is named by its kind."""
    parts = [block.text if isinstance(block, TextContent) else f"[{block.type}]" for block in result.content]
    return ("Error: " if result.is_error else "") + "\n".join(parts)


def first_error(error: Exception) -> str:
    """Return the text of an error, or of a group's first one."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return (error.message if isinstance(error, MCPError) else str(error)) or type(error).__name__


def read_end(errors: IO[str]) -> str:
    """Return the end of what a process wrote to its standard error."""
    with contextlib.suppress(OSError, ValueError):
        errors.seek(0)
        return errors.read()[-ERROR_CHARACTERS:].strip()
    return ""
