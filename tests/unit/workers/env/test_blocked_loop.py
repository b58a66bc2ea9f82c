"""An environment that blocks the event loop ends its process, which names the call; one that awaits does not."""

import asyncio
import subprocess
import sys
from itertools import pairwise
from types import SimpleNamespace

from tests.unit.clockwork import by_clockwork
from workers.env import blocked_loop

PROGRAM = """
import asyncio, time
from workers.env import blocked_loop
blocked_loop.BLOCKED_S = 2.0

async def blocks():
    watch = blocked_loop.end_when_blocked()
    watch.send(None)  # The timer is set, and whenever it ends, this function is on the stack.
    time.sleep(1000)

asyncio.run(blocks())
"""


def test_a_blocked_event_loop_ends_its_process_with_a_traceback():
    command = [sys.executable, "-c", PROGRAM]
    found = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False)
    assert (found.returncode, "in blocks" in found.stderr) == (1, True)


@by_clockwork
async def test_the_end_is_put_off_while_the_loop_runs_and_called_off_after(monkeypatch):
    ends_s, clock = [], asyncio.get_running_loop().time
    timer = {"dump_traceback_later": lambda in_s, exit: ends_s.append(clock() + in_s)}
    timer["cancel_dump_traceback_later"] = ends_s.clear
    monkeypatch.setattr(blocked_loop, "faulthandler", SimpleNamespace(**timer))
    monkeypatch.setattr(blocked_loop, "sys", SimpleNamespace(gettrace=lambda: None, stdin=None))
    watch = asyncio.create_task(blocked_loop.end_when_blocked())
    await asyncio.sleep(10 * blocked_loop.BLOCKED_S)
    assert max(later - earlier for earlier, later in pairwise(ends_s)) < blocked_loop.BLOCKED_S
    assert ends_s[-1] > clock()
    watch.cancel()
    await asyncio.gather(watch, return_exceptions=True)
    assert ends_s == []
