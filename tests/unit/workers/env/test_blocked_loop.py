"""An environment that blocks the event loop ends its process, which names the call; one that awaits does not."""

import subprocess
import sys

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


def ended(blocks: bool) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM.replace("{blocks}", str(blocks))]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)


def test_a_blocked_event_loop_ends_the_process_with_a_traceback():
    found = ended(blocks=True)
    assert (found.returncode, found.stdout) == (1, "waited\n")
    assert "in blocks" in found.stderr


def test_a_running_or_unwatched_event_loop_does_not_end_the_process():
    found = ended(blocks=False)
    assert (found.returncode, found.stdout) == (0, "waited\nleft\n")
