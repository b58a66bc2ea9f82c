"""Waiting for rest, by the script itself in a process namespace of its own."""

import asyncio
import shlex
import shutil
import subprocess
import time
from unittest.mock import AsyncMock

import pytest

from dart_desktops.osworld.settling import wait_idle
from workers.env.environment import EnvironmentFault

ALONE = ["bwrap", "--dev-bind", "/", "/", "--unshare-user", "--unshare-pid", "--proc", "/proc", "--die-with-parent"]


CAN_BE_ALONE = shutil.which("bwrap") is not None and not subprocess.run([*ALONE, "true"], check=False).returncode
pytestmark = pytest.mark.skipif(not CAN_BE_ALONE, reason="needs bubblewrap, and that it may make namespaces")


class Alone:
    """A machine on which, besides a command, only ``beside`` runs."""

    def __init__(self, beside: str) -> None:
        self.beside = beside

    async def execute(self, command, limit_s: float):
        script = f"{self.beside}\n{shlex.join(command)}\ncode=$?; kill $! 2>/dev/null; exit $code"
        process = await asyncio.create_subprocess_exec(
            *[*ALONE, "sh", "-c", script], stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        output, errors = await process.communicate()
        return {"returncode": process.returncode, "output": output.decode(), "error": errors.decode()}


@pytest.mark.parametrize("beside", ["", "sleep 30 &"])
async def test_a_machine_whose_processes_all_sleep_is_at_rest(beside):
    assert await wait_idle(Alone(beside), 60.0)


async def test_a_machine_that_computes_is_not_at_rest_when_the_time_is_over():
    began = time.monotonic()
    assert not await wait_idle(Alone("(while :; do :; done) &"), 1.5)
    assert time.monotonic() - began >= 1.5


async def test_a_machine_that_stops_to_compute_is_then_at_rest():
    began = time.monotonic()
    assert await wait_idle(Alone("timeout 1 sh -c 'while :; do :; done' &"), 60.0)
    assert time.monotonic() - began >= 1.0


async def test_a_machine_that_cannot_say_it_is_a_fault():
    ended = {"returncode": 127, "output": "", "error": "no python3"}
    with pytest.raises(EnvironmentFault, match="no python3"):
        await wait_idle(AsyncMock(execute=AsyncMock(return_value=ended)), 1.0)
