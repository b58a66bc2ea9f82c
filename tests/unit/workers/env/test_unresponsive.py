"""A browser that answers nothing: lost if its process waits for nothing but events, else waited for."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.unit.workers.env.backends.miniwob.test_begin_frames import STARVED, WAITING, Answer, ScriptedBrowser
from tests.waiting import wait_until
from workers.env.backends.miniwob import watchdogs
from workers.env.backends.miniwob.devtools import DevTools
from workers.env.backends.miniwob.process_load import ProcessLoad, load_alone, rests
from workers.env.backends.miniwob.watchdogs import LOOKS, QUESTION, end_when_silent
from workers.env.environment import EnvironmentFault

BOUND_S = 60.0


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(watchdogs, "SILENT_S", 0.05)
    monkeypatch.setattr(watchdogs, "POLL_INTERVAL_S", 0.02)


@contextlib.asynccontextmanager
async def watched(
    browser: ScriptedBrowser, load: Callable[[], ProcessLoad] = lambda: WAITING, timeout_s: float = 60.0
) -> AsyncIterator[DevTools]:
    """Yield a connection whose silence is watched."""
    devtools = DevTools(browser.reader, browser, timeout_s)
    watch = asyncio.create_task(end_when_silent(devtools, load))
    async with asyncio.timeout(BOUND_S):
        yield devtools
        if devtools.closed:
            await watch
    watch.cancel()
    await devtools.close()


async def test_every_call_of_an_idle_browser_that_never_responds_fails():
    async with watched(ScriptedBrowser(lambda browser, call: None)) as devtools:
        with pytest.raises(EnvironmentFault, match="stands still"):
            await devtools.call("Input.dispatchMouseEvent")
        assert devtools.closed


async def test_only_processes_of_the_browsers_own_session_are_killed_for_memory(monkeypatch):
    monkeypatch.setattr(watchdogs, "RENDERER_BYTES", 1)
    monkeypatch.setattr(watchdogs, "MEMORY_INTERVAL_S", 0.01)
    others, own = [await asyncio.create_subprocess_exec("sleep", "600", start_new_session=True) for _ in range(2)]
    forged = [{}, {"type": "renderer", "id": "x"}, *({"type": "renderer", "id": one.pid} for one in (others, own))]
    browser = ScriptedBrowser(lambda browser, call: {"processInfo": forged})
    watch = asyncio.create_task(watchdogs.end_large_processes(DevTools(browser.reader, browser, 60.0), own.pid))
    assert await asyncio.wait_for(own.wait(), BOUND_S) == -signal.SIGKILL
    assert (others.returncode, watch.done()) == (None, False)
    others.kill()
    await others.wait()
    watch.cancel()


async def test_a_browser_that_owes_nothing_is_not_asked():
    browser = ScriptedBrowser(lambda browser, call: {})
    async with watched(browser) as devtools:
        await devtools.call("Page.enable")
        await asyncio.sleep(0.3)
        assert (browser.called(QUESTION), devtools.closed) == (0, False)


async def test_a_browser_that_answers_for_a_page_that_hangs_is_kept():
    browser = ScriptedBrowser(lambda browser, call: {} if call["method"] == QUESTION else None)
    async with watched(browser, timeout_s=0.5) as devtools:
        while browser.called(QUESTION) <= LOOKS:
            with pytest.raises(EnvironmentFault, match="no answer"):
                await devtools.call("Runtime.evaluate", "hangs")
            assert not devtools.closed


@pytest.mark.parametrize("starved", [True, False])
async def test_a_browser_that_computes_or_gets_no_processor_is_waited_for(starved):
    looks: list[Any] = []

    def load() -> ProcessLoad:
        looks.append(None)
        return STARVED if starved else ProcessLoad(float(len(looks)), False)

    def answer(browser: ScriptedBrowser, call: dict[str, Any]) -> Answer:
        if len(looks) > 5 * LOOKS:
            return {}
        asyncio.get_running_loop().call_later(0.01, lambda: browser.write_again(call))
        return None

    class Late(ScriptedBrowser):
        def write_again(self, call: dict[str, Any]) -> None:
            if (result := self.answer(self, call)) is not None:
                self.reply(call, result)

    async with watched(Late(answer), load) as devtools:
        assert await devtools.call("Page.enable") == {}
        assert not devtools.closed


def test_a_stopped_process_rests_and_one_that_computes_does_not():
    command = [sys.executable, "-c", "print(flush=True)\nwhile True: pass"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline()
            wait_until(lambda: load_alone(process.pid).runnable)  # It may wait for a page of its memory, or a lock.
            os.kill(process.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
            before = load_alone(process.pid)
            assert rests(before, load_alone(process.pid))
        finally:
            process.kill()
    assert load_alone(process.pid) == ProcessLoad(0.0, False)


def test_a_process_whose_other_thread_can_run_does_not_rest():
    compute = "lambda: [print(flush=True), [None for _ in iter(int, 1)]]"
    code = f"import threading\nthreading.Thread(target={compute}).start()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline()
            wait_until(lambda: load_alone(process.pid).runnable)  # It may wait for a page of its memory, or a lock.
        finally:
            process.kill()
