"""Desktops that the real process serves, and their leases."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from dart_desktops.osworld.machine import Machine
from dart_desktops.osworld.providers import LeaseGrant
from dart_desktops.osworld.settling import wait_idle
from tests.waiting import until

READY_S = 60.0
CALL_S = 60.0
NONE_READY = 503
UP_S = 240.0
"""How long the server may take to listen, to lease, or to end, on a machine that does other work."""
IDLE_S = 110.0
"""How long programs may compute at their start, with more of the processors during a call; one has 120 s."""


class Served:
    """A running server: where it leases, with which token, and its process."""

    def __init__(self, process: asyncio.subprocess.Process, announced: dict[str, Any], folder: Path) -> None:
        self.process = process
        self.folder = folder
        """Folder of its configuration and its log."""
        self.leases: str = announced["leases"]
        self.desktops: list[str] = announced["desktops"]
        self.token_file = announced["token_file"]
        self.token = Path(self.token_file).read_text() if self.token_file else ""

    async def ask(
        self, method: str, path: str = "/leases", token: str | None = None, **body: Any
    ) -> tuple[int, dict[str, Any]]:
        """Send a request to the lease server; return status and answer."""
        wanted = self.token if token is None else token
        headers = {"Authorization": f"Bearer {wanted}"} if wanted else {}
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, self.leases + path, json=body or None, headers=headers) as answer,
        ):
            text = await answer.text()
            return answer.status, json.loads(text) if text else {}

    async def lease(self, **wanted: Any) -> dict[str, Any]:
        """Lease a fresh desktop once there is one."""
        for _ in range(4):  # The server waits each time.
            if (leased := await self.ask("POST", wait_s=READY_S, **wanted))[0] != NONE_READY:
                break
        assert leased[0] == 201, leased
        return leased[1]

    @contextlib.asynccontextmanager
    async def machine(self, **wanted: Any) -> AsyncIterator[Machine]:
        """A client of a fresh desktop, whose lease is released then."""
        lease = await self.lease(**wanted)
        try:
            async with Machine(msgspec.convert(lease, LeaseGrant).endpoint(), CALL_S) as client:
                yield client
        finally:
            await self.ask("DELETE", f"/leases/{lease['id']}")


async def wait_for_window(machine: Machine, title: str) -> None:
    """Wait until a window is shown, and takes input: no process computes any more."""

    async def is_shown() -> bool:
        return (await machine.execute(f"wmctrl -l | grep -qF '{title}'", shell=True))["returncode"] == 0

    await until(is_shown, 400.0)
    await wait_idle(machine, IDLE_S)


@contextlib.asynccontextmanager
async def served(folder: Path, size: tuple[int, int] = (640, 480), **desktops: Any) -> AsyncIterator[Served]:
    """Run ``dart-streams worker desktops`` with the settings of ``[desktops]``."""
    tables = {
        "run": {"state_dir": str(folder / "state")},
        "env.desktop": {"width": size[0], "height": size[1], "call_timeout_s": CALL_S},
        "desktops": desktops,
    }
    file = folder / "desktops.toml"
    lines = [
        f"[{name}]\n" + "".join(f"{key} = {json.dumps(v)}\n" for key, v in table.items())
        for name, table in tables.items()
    ]
    file.write_text("\n".join(lines))
    command = (sys.executable, "-m", "console.cli", "worker", "desktops", "--config", str(file))
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=log, env=os.environ
        )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(UP_S):
            line = await process.stdout.readline()
        assert line, (folder / "log").read_text()[-2000:]
        yield Served(process, json.loads(line), folder)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(UP_S):
            await process.wait()
