"""Cost of concurrent phones: ``dart-streams bench phones``.

Slots in one process let the oracle play every task family, without broker, policy or store. CPU time is that of the
phone's process. A phone's first episode does not count, as it loads its classes then.
"""

import asyncio
import os
import time
from collections import defaultdict
from typing import Any

import psutil

from benchmarks.desktop_cost import Calls
from dart_phones.backend import PhoneBackend
from dart_phones.environment import PhoneEnvironment
from dart_phones.families import FAMILIES
from dart_streams.config import Config
from dart_streams.config.tasks import Task
from dart_streams.portable_math import interpolate_quantile

IDLE_S = 5.0
"""Seconds over which idle cost is measured."""


class PhoneCosts:
    """Cost of the calls of all families."""

    def __init__(self) -> None:
        self.calls: defaultdict[str, Calls] = defaultdict(Calls)
        self.pss_mb: list[float] = []
        self.idle_core_ms: list[float] = []
        self.episodes = self.solved = 0

    async def play(self, backend: PhoneBackend, task: Task, *, counted: bool) -> None:
        """Let the oracle play an episode, and count its calls."""
        environment = await backend.open(task)
        try:
            await self.time_call("reset", environment, environment.reset(task), counted=counted)
            number = 0
            async for action in environment.demonstrate(task):
                number += 1
                await self.time_call("step", environment, environment.step(action, f"{number}"), counted=counted)
            self.episodes += 1
            self.solved += await environment.evaluate() == 1
        finally:
            await environment.close()

    async def time_call(self, kind: str, environment: PhoneEnvironment, call: Any, *, counted: bool) -> None:
        """Await a call, and count its seconds and core-seconds."""
        before, began = cpu_s(environment), time.perf_counter()
        await call
        if counted:
            self.calls[kind].seconds.append(time.perf_counter() - began)
            self.calls[kind].core_s.append(cpu_s(environment) - before)

    async def hold(self, backend: PhoneBackend, slots: int) -> None:
        """Hold all phones at once, and read their memory and idle cost."""
        chosen = task_of("setting", 0)
        held = await asyncio.gather(*(backend.open(chosen) for _ in range(slots)))
        try:
            await asyncio.gather(*(environment.reset(chosen) for environment in held))
            before = [cpu_s(environment) for environment in held]
            await asyncio.sleep(IDLE_S)
            for environment, earlier in zip(held, before, strict=True):
                self.idle_core_ms.append(1000 * (cpu_s(environment) - earlier) / IDLE_S)
                self.pss_mb.append(process_of(environment).memory_full_info().pss / 1e6)
        finally:
            for environment in held:
                await environment.close()


async def measure(config: Config, slots: int, episodes: int) -> dict[str, Any]:
    """Return the cost of ``slots`` phones that play ``episodes`` of each family, each after one that does not count."""
    backend, costs = PhoneBackend(config), PhoneCosts()
    await backend.start()
    try:
        began = time.perf_counter()
        await asyncio.gather(*(play_all(costs, backend, slot, range(1), counted=False) for slot in range(slots)))
        first_s = time.perf_counter() - began
        await asyncio.gather(
            *(play_all(costs, backend, slot, range(1, 1 + episodes), counted=True) for slot in range(slots))
        )
        await costs.hold(backend, slots)
    finally:
        await backend.stop()
    return {
        "slots": slots,
        "load": round(os.getloadavg()[0], 1),
        "first_episodes_s": round(first_s, 1),
        "episodes": costs.episodes,
        "solved": costs.solved,
        **{kind: calls.figures() for kind, calls in sorted(costs.calls.items())},
        "idle_core_ms_per_s": round(interpolate_quantile(sorted(costs.idle_core_ms), 0.5), 1),
        "pss_mb": round(interpolate_quantile(sorted(costs.pss_mb), 0.5)),
    }


async def play_all(costs: PhoneCosts, backend: PhoneBackend, slot: int, rounds: range, *, counted: bool) -> None:
    """Play each family in each round."""
    for number in rounds:
        for family in FAMILIES:
            await costs.play(backend, task_of(family, 1000 * slot + number), counted=counted)


def task_of(family: str, seed: int) -> Task:
    """Return a task of a family."""
    return Task(environment="phone", page=family, seed=seed, max_steps=10, split="train")


def process_of(environment: PhoneEnvironment) -> psutil.Process:
    """Return the phone's process."""
    assert environment.phone.process is not None
    return psutil.Process(environment.phone.process.pid)


def cpu_s(environment: PhoneEnvironment) -> float:
    """Return the CPU seconds of the phone's process so far."""
    times = process_of(environment).cpu_times()
    return float(times.user + times.system)
