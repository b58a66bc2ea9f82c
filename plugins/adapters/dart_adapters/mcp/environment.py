"""Any backend with the tools of MCP servers beside its actions."""

import asyncio
from typing import Any

import msgspec

from dart_adapters.mcp.server import McpServer
from dart_streams.actions import Action, Call, Wait
from dart_streams.actions.offered import cut_returned
from dart_streams.config import Config
from dart_streams.config.tasks import Task
from workers.env.environment import Environment, EnvironmentBackend, Screen


class ToolBackend:
    """Makes environments of ``inner`` with the tools of ``env.mcp``; all else is that of ``inner``."""

    def __init__(self, inner: EnvironmentBackend, config: Config) -> None:
        self.inner = inner
        self.servers = config.env.mcp.servers
        self.call_timeout_s = config.env.selected.call_timeout_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def start(self) -> None:
        """Start the inner backend."""
        await self.inner.start()

    async def open(self, task: Task) -> "ToolEnvironment":
        """Return an environment of one episode; its servers start with its reset."""
        servers = [McpServer(settings, self.call_timeout_s) for settings in self.servers]
        return ToolEnvironment(await self.inner.open(task), servers)

    async def stop(self) -> None:
        """Free everything."""
        await self.inner.stop()


class ToolEnvironment:
    """An episode's environment and its servers, which restart at each reset and end with it."""

    def __init__(self, inner: Environment, servers: list[McpServer]) -> None:
        self.inner = inner
        self.servers = servers
        self.owners: dict[str, McpServer] = {}
        self.executed = ""
        self.returned = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def reset(self, task: Task) -> Screen:
        """Start the task and the servers; raise EnvironmentFault if one of them fails."""
        starting = asyncio.gather(*(server.start() for server in self.servers), return_exceptions=True)
        try:
            screen = await self.inner.reset(task)
        finally:
            results = await starting
        offered = [result for result in results if not isinstance(result, BaseException)]
        for result in results:
            if isinstance(result, BaseException):
                raise result
        self.executed = self.returned = ""
        pairs = [(offer, server) for server, own in zip(self.servers, offered, strict=True) for offer in own]
        self.owners = {offer.name: server for offer, server in pairs}
        return msgspec.structs.replace(screen, calls=(*screen.calls, *(offer for offer, _ in pairs)))

    async def step(self, action: Action, action_id: str, last: bool = False) -> Screen:
        """Call a tool and look at the screen, or execute an action of the inner environment."""
        again, self.executed = action_id == self.executed, action_id
        server = self.owners.get(action.name) if isinstance(action, Call) else None
        if not isinstance(action, Call) or server is None:
            return await self.inner.step(action, action_id, last)
        if not again:
            self.returned = cut_returned(await server.call(action.name.partition(".")[2], action.arguments))
        screen = await self.inner.step(Wait(), action_id, last)
        return msgspec.structs.replace(screen, returned=self.returned)

    async def close(self) -> None:
        """End the servers and close the inner environment; never raises."""
        await asyncio.gather(self.inner.close(), *(server.stop() for server in self.servers), return_exceptions=True)
