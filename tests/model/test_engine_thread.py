"""The engine's thread without an engine: one that hangs differs from one that waits, and serves nothing later."""

import asyncio
import threading

import pytest

from workers.rollout.engine import EngineDead
from workers.rollout.vllm_engine import EngineThread

BOUND_S = 120.0


class Idle:
    """An engine without requests."""

    busy = False

    def failure(self) -> str:
        """Return that no rank has ended."""
        return ""

    def close(self) -> None:
        """Have nothing to end."""


async def test_a_hanging_command_fails_pending_and_later_calls():
    thread, begun, over = EngineThread(Idle), threading.Event(), threading.Event()
    hanging = asyncio.ensure_future(thread.call(lambda _: (begun.set(), over.wait(BOUND_S))))
    waiting = asyncio.ensure_future(thread.call(lambda _: "served"))
    assert await asyncio.to_thread(begun.wait, BOUND_S)
    thread.check()
    thread.hang_s = 0.0
    with pytest.raises(EngineDead, match=r"vLLM hangs: .*rollout\.vllm\.hang_s is 0\)"):
        thread.check()
    for failed in (hanging, waiting, thread.call(lambda _: "served")):
        with pytest.raises(EngineDead, match="vLLM hangs"):
            await failed
    over.set()
    await thread.stop(BOUND_S)
    with pytest.raises(EngineDead, match="vLLM hangs"):
        thread.check()


async def test_a_thread_that_has_nothing_to_do_does_not_hang():
    thread = EngineThread(Idle)
    assert await thread.call(lambda _: "served") == "served"
    async with asyncio.timeout(BOUND_S):
        while thread._began_s is not None:  # noqa: ASYNC110 - the command may be a turn from its end
            await asyncio.sleep(0)
    thread.hang_s = 0.0
    thread.check()
    await thread.stop(BOUND_S)
    thread.check()
