"""Client of a process with one Gymnasium environment."""

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil

from dart_streams.config.text import MALFORMED
from workers.env.backends.connection import excerpt
from workers.env.environment import EnvironmentFault
from workers.env.foreign_process import kill_group, login_variables

SERVER = Path(__file__).with_name("gymnasium_server.py")
READY_S = 120.0
"""Time limit of its imports, also on a busy machine."""
STOP_S = 5.0
LINE_BYTES = 2**26


class GymnasiumProcess:
    """One environment; after a fault it is ended, since its state is unknown."""

    def __init__(self, python: Path, packages: Sequence[str], browser: str, variables: Sequence[str] = ()) -> None:
        self.variables = variables
        self.command = [str(python), "-I", str(SERVER), json.dumps([list(packages), browser])]
        self.process: asyncio.subprocess.Process | None = None
        self._error_lines: deque[str] = deque(maxlen=20)
        self._errors: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process is not None and self.process.returncode is None

    async def start(self) -> None:
        """Start the process; raise EnvironmentFault with its error output if it fails."""
        pipe = asyncio.subprocess.PIPE
        try:
            self.process = await asyncio.create_subprocess_exec(
                *self.command,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                limit=LINE_BYTES,
                start_new_session=True,
                env=login_variables(*self.variables),
            )
        except OSError as error:
            raise EnvironmentFault(f"{self.command[0]} cannot be run: {error}") from None
        assert self.process.stderr is not None
        self._errors = asyncio.create_task(self._read_errors(self.process.stderr))
        await self._answer(READY_S)

    async def ask(self, limit_s: float, **request: Any) -> dict[str, Any]:
        """Send a request once and return its response; raise EnvironmentFault if it fails."""
        if self.process is None or self.process.stdin is None or not self.alive:
            raise EnvironmentFault("the environment's process has ended")
        self.process.stdin.write(msgspec.json.encode(request) + b"\n")
        with contextlib.suppress(ConnectionError):  # It has ended, which the read reports.
            await self.process.stdin.drain()
        return await self._answer(limit_s)

    async def stop(self) -> None:
        """Kill the process if it runs, and its children; never raises."""
        if self.process is None:
            return
        below: list[psutil.Process] = []
        if self.process.returncode is None:
            with contextlib.suppress(psutil.Error):
                below = psutil.Process(self.process.pid).children(recursive=True)
            kill_group(self.process.pid)
            await self.process.wait()
        if self.process.stdin is not None:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(STOP_S):
                    await self.process.stdin.wait_closed()
        for child in below:  # Browsers are in other sessions.
            with contextlib.suppress(psutil.Error):
                child.kill()
        if self._errors is not None:
            self._errors.cancel()

    async def _answer(self, limit_s: float) -> dict[str, Any]:
        assert self.process is not None
        assert self.process.stdout is not None
        try:
            async with asyncio.timeout(limit_s):
                line = await self.process.stdout.readline()
        except TimeoutError:
            raise EnvironmentFault(f"the environment does not answer within {limit_s:g} s") from None
        except ValueError:
            raise EnvironmentFault(f"the environment's answer is longer than {LINE_BYTES} bytes") from None
        if not line:
            raise EnvironmentFault(f"the environment's process has ended: {' '.join(self._error_lines)[-500:]}")
        try:
            answer: dict[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
        except MALFORMED as error:
            raise EnvironmentFault(f"the environment's process writes no answer: {error}: {excerpt(line)}") from None
        if "fault" in answer:
            raise EnvironmentFault(str(answer["fault"]))
        return answer

    async def _read_errors(self, lines: asyncio.StreamReader) -> None:
        while line := await lines.readline():
            self._error_lines.append(line.decode(errors="replace").strip())
