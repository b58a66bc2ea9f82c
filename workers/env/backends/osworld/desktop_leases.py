"""Machines from a server of desktops (``dart-streams worker desktops``): each lease is a fresh one."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from workers.env.backends.osworld.connection import MachineEndpoint
from workers.env.backends.osworld.machine import Machine
from workers.env.environment import EnvironmentFault

WAIT_S = 60.0
CALL_S = 45.0
"""Of a call to a leased desktop."""


class DesktopLeases:
    """Leases of one server."""

    def __init__(self, url: str, token: str = "", wait_s: float = 600.0) -> None:
        self.url, self.token, self.wait_s = url.rstrip("/"), token, wait_s

    @contextlib.asynccontextmanager
    async def machine(self) -> AsyncIterator[Machine]:
        """A fresh desktop, given back then; raise EnvironmentFault if none is free in time."""
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        timeout = aiohttp.ClientTimeout(total=WAIT_S + CALL_S)
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as client:
            lease = await self._acquire(client)
            try:
                endpoint = MachineEndpoint(url=lease["url"], token=lease["token"] if self.token else "")
                async with Machine(endpoint, CALL_S) as machine:
                    yield machine
            finally:
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):  # It then ends by itself.
                    await client.delete(f"{self.url}/leases/{lease['id']}")

    async def _acquire(self, client: aiohttp.ClientSession) -> dict[str, Any]:
        why = ""
        for _ in range(max(1, round(self.wait_s / WAIT_S))):
            try:
                async with client.post(f"{self.url}/leases", json={"wait_s": WAIT_S}) as answer:
                    body = await answer.json(content_type=None)
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                raise EnvironmentFault(f"{self.url}: {str(error) or type(error).__name__}") from None
            if answer.status == 201:
                return dict(body)
            why = f"{answer.status}: {str(body)[:200]}"
            if answer.status != 503:
                break
        raise EnvironmentFault(f"{self.url} leases no desktop: {why}")
