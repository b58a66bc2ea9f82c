"""Contestants of a comparison of environments: this project's browser code, and peer processes."""

import asyncio
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any, Protocol

import msgspec
import psutil

from benchmarks.peers.plays import Play
from dart_streams.actions import Click
from dart_streams.config import Config
from dart_streams.errors import UserError
from workers.env.backends.miniwob.backend import MiniwobBackend
from workers.env.backends.miniwob.browser import find_browser, lower_priority
from workers.env.backends.miniwob.page import page_folder
from workers.env.environment import EnvironmentFault

DRIVER = "node"
"""Process name of Playwright's driver."""
PYTHON = Path(".venv/browsergym/bin/python")
PLAYER = Path(__file__).with_name("browsergym_player.py")
WARM_S = 2.0
"""Seconds of play before the first turn, per slot if documents are kept."""
STRIDE = 17
"""Offset of a peer process's first episode to the previous one's."""
TURN_TIMEOUT_S = 120.0
"""Time that a peer may take to end a finished turn."""


class SlotTurn(msgspec.Struct, frozen=True):
    """A turn of one environment; ``ends`` has episode number, whether it ended, and reward."""

    seconds: float
    reset_s: list[float]
    step_s: list[float]
    ends: list[tuple[int, bool, float]]
    faults: int = 0


class Turn(msgspec.Struct, frozen=True):
    """A turn of a contestant's environments, and CPU seconds by kind of process."""

    slots: list[SlotTurn]
    cpu_s: dict[str, float]

    @property
    def steps(self) -> int:
        """Steps taken."""
        return sum(len(slot.step_s) for slot in self.slots)

    @property
    def steps_per_s(self) -> float:
        """Steps per second, as if each environment had continued at its pace."""
        return sum(len(slot.step_s) / slot.seconds for slot in self.slots)

    def core_ms(self, kind: str | None = None) -> float:
        """Return core-milliseconds per step of one kind of process, or of all."""
        total = sum(self.cpu_s.values()) if kind is None else self.cpu_s[kind]
        return 1000 * total / max(1, self.steps)


class Contestant(Protocol):
    """Environments of one kind."""

    name: str
    warm_s: float
    """How long it plays before its first turn."""

    async def turn(self, start: int, seconds: float) -> Turn:
        """Play recorded episodes from ``start`` on until the time is over."""

    async def stop(self) -> None:
        """End all processes."""


class Ours:
    """Browser code of this project in this process, one browser for all environments."""

    def __init__(self, name: str, config: Config, slots: int, plays: list[Play], **options: Any) -> None:
        own = msgspec.structs.replace(config.env.miniwob, **options)
        env = msgspec.structs.replace(config.env, miniwob=own, slots=slots)
        self.name = f"{name} x{slots}"
        self.warm_s = WARM_S * (slots if own.isolation == "problem" else 1)
        self.slots = slots
        self.plays = plays
        self.backend = MiniwobBackend(msgspec.structs.replace(config, env=env))

    async def turn(self, start: int, seconds: float) -> Turn:
        """See :class:`Contestant`."""
        await self.backend.start()
        before = self._cpu_s()
        waiting = iter(range(start, start + 1_000_000))
        slots = await asyncio.gather(*(self._slot(waiting, seconds) for _ in range(self.slots)))
        return Turn(list(slots), cpu_difference(before, self._cpu_s()))

    def _cpu_s(self) -> dict[str, float]:
        roots = [psutil.Process(one.browser.process.pid) for one in self.backend.browsers if one.browser is not None]
        browsers = sum(sum(cpu_s(root).values()) for root in roots)
        own = psutil.Process().cpu_times()
        ended = own.children_user + own.children_system  # Of a browser that had to be replaced.
        return {"python": own.user + own.system, "node": 0.0, "chromium": browsers + ended}

    async def _slot(self, waiting: Any, seconds: float) -> SlotTurn:
        found, faults = SlotTurn(0.0, [], [], []), 0
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            try:
                await self._play(next(waiting) % len(self.plays), found)
            except EnvironmentFault:
                faults += 1
        return msgspec.structs.replace(found, seconds=time.perf_counter() - began, faults=faults)

    async def _play(self, number: int, found: SlotTurn) -> None:
        play = self.plays[number]
        started = time.perf_counter()
        page = await self.backend.open(play.task)
        try:
            await page.reset(play.task)
            found.reset_s.append(time.perf_counter() - started)
            for count, (x, y) in enumerate(play.clicks, start=1):
                started = time.perf_counter()
                screen = await page.step(Click(x, y), str(count), count == len(play.clicks))
                found.step_s.append(time.perf_counter() - started)
                if screen.done:
                    break
            found.ends.append((number, page.done, float(page.raw_reward)))
        finally:
            await page.close()

    async def stop(self) -> None:
        """See :class:`Contestant`."""
        await self.backend.stop()


class Peer:
    """N processes of a peer with the same pages, browser and priority, so that other load slows all alike."""

    def __init__(self, variant: str, slots: int, plays: Path) -> None:
        if not PYTHON.is_file():
            raise UserError(f"the peer's environment {PYTHON.parents[1]} is missing: run `make peers`")
        self.name = f"{variant} x{slots}"
        self.warm_s = WARM_S
        command = [str(PYTHON), str(PLAYER), variant, str(plays), find_browser()]
        environment = os.environ | {"MINIWOB_URL": f"{page_folder().as_uri()}/"}
        environment.pop("PYTHONPATH", None)
        self.processes = [
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
            for _ in range(slots)
        ]
        for process in self.processes:
            lower_priority(process.pid)

    async def turn(self, start: int, seconds: float) -> Turn:
        """See :class:`Contestant`."""
        roots = [psutil.Process(process.pid) for process in self.processes]
        before = [cpu_s(root) for root in roots]
        async with asyncio.timeout(seconds + TURN_TIMEOUT_S):
            slots = await asyncio.gather(
                *(
                    asyncio.to_thread(self._ask, process, start + number * STRIDE, seconds)
                    for number, process in enumerate(self.processes)
                )
            )
        after = [cpu_difference(was, cpu_s(root)) for was, root in zip(before, roots, strict=True)]
        return Turn(list(slots), {kind: sum(one[kind] for one in after) for kind in after[0]})

    def _ask(self, process: "subprocess.Popen[bytes]", start: int, seconds: float) -> SlotTurn:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps({"start": start, "seconds": seconds}).encode() + b"\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            raise UserError(f"{self.name} ended: run {PLAYER} by hand to see the error")
        return msgspec.json.decode(answer, type=SlotTurn)

    async def stop(self) -> None:
        """See :class:`Contestant`."""
        for process in self.processes:
            if process.stdin is not None:
                process.stdin.close()
        for process in self.processes:
            try:
                await asyncio.to_thread(process.wait, 20.0)
            except subprocess.TimeoutExpired:
                process.kill()


def cpu_s(root: psutil.Process) -> dict[str, float]:
    """Return CPU seconds of ``python`` (the root), ``node`` and ``chromium`` (the rest, and all ended children)."""
    found = {"python": 0.0, "node": 0.0, "chromium": 0.0}
    for process in (root, *root.children(recursive=True)):
        try:
            name, times = process.name(), process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        kind = "python" if process == root else "node" if name == DRIVER else "chromium"
        found[kind] += times.user + times.system
        found["chromium"] += times.children_user + times.children_system
    return found


def cpu_difference(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """Return the CPU seconds between two readings."""
    return {kind: after[kind] - before[kind] for kind in after}
