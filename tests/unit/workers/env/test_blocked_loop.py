"""An environment that blocks the event loop ends its process, which names the call; one that awaits does not."""

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, time
from workers.env import blocked_loop
blocked_loop.BLOCKED_S, blocked_loop.POLL_INTERVAL_S = 0.4, 0.05

async def waits():
    await asyncio.sleep(1.2)

async def blocks():
    time.sleep(100)

async def main():
    watch = asyncio.create_task(blocked_loop.end_when_blocked())
    await waits()
    print("waited", flush=True)
    if {blocks}:
        await blocks()
    watch.cancel()
    await asyncio.gather(watch, return_exceptions=True)
    time.sleep(0.8)
    print("left", flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize(("blocks", "code", "output"), [(True, 1, "waited\n"), (False, 0, "waited\nleft\n")])
def test_only_a_blocked_event_loop_ends_its_process_with_a_traceback(blocks: bool, code: int, output: str):
    command = [sys.executable, "-c", PROGRAM.replace("{blocks}", str(blocks))]
    found = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    assert (found.returncode, found.stdout) == (code, output)
    assert ("in blocks" in found.stderr) is blocks
