"""What desktops cost side by side: ``dart-streams bench desktops``.

Slots in one process let the oracle play a task set's families, without broker, policy or store. CPU time is that of
each desktop's control group, taken around each call, so that what ended meanwhile counts too; without a control group
there is none. Nothing is counted before each slot has played an episode.
"""

import asyncio
import time
from collections import defaultdict
from typing import Any

import msgspec
import psutil

from dart_streams.config import Config
from dart_streams.quantiles import quantile
from dart_streams.tasks import Task, TaskSet
from workers.env.desktop.backend import DesktopBackend
from workers.env.desktop.environment import DesktopEnvironment
from workers.env.environment import EnvironmentFault


class Calls:
    """Seconds and core-seconds of the calls of one kind."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.core_s: list[float] = []

    def figures(self) -> dict[str, Any]:
        """Return quantiles of the time in ms, and the mean core-ms (None if it was not measured)."""
        if not self.seconds:
            return {"count": 0}
        ordered = sorted(self.seconds)
        mean = sum(self.core_s) / len(self.core_s) if self.core_s else None
        return {
            "count": len(ordered),
            "p50_ms": round(1000 * quantile(ordered, 0.5), 1),
            "p99_ms": round(1000 * quantile(ordered, 0.99), 1),
            "core_ms": None if mean is None else round(1000 * mean, 1),
        }


class DesktopCosts:
    """What the calls of each family have cost so far."""

    def __init__(self) -> None:
        self.calls: defaultdict[tuple[str, str], Calls] = defaultdict(Calls)
        self.memory_mb: defaultdict[str, list[float]] = defaultdict(list)
        self.faults: list[str] = []
        self.solved = self.episodes = 0

    async def play(self, backend: DesktopBackend, task: Task) -> None:
        """Let the oracle play an episode, and count it."""
        began = time.perf_counter()
        environment = await backend.open(task)
        self.calls[task.page, "open"].seconds.append(time.perf_counter() - began)
        try:
            await self._timed(environment, task.page, "reset", environment.reset(task))
            number = 0
            async for action in environment.demonstrate(task):
                number += 1
                await self._timed(environment, task.page, "step", environment.step(action, str(number)))
            self.memory_mb[task.page].append(pss_mb(environment))
            self.solved += await environment.evaluate() == 1
            self.episodes += 1
        except EnvironmentFault as fault:
            self.faults.append(f"{task.task_id}: {fault}")
        finally:
            await environment.close()

    async def _timed(self, environment: DesktopEnvironment, page: str, kind: str, call: Any) -> None:
        group = environment.sandbox.group
        before, began = group.cpu_s() if group else None, time.perf_counter()
        await call
        calls = self.calls[page, kind]
        calls.seconds.append(time.perf_counter() - began)
        after = group.cpu_s() if group else None
        if before is not None and after is not None:
            calls.core_s.append(after - before)

    def figures(self) -> dict[str, Any]:
        """Return what was measured, by family."""
        pages = sorted({page for page, _ in self.calls})
        return {
            page: {kind: self.calls[page, kind].figures() for kind in ("open", "reset", "step")}
            | {"pss_mb": round(quantile(sorted(self.memory_mb[page] or [0.0]), 0.5))}
            for page in pages
        }


def pss_mb(environment: DesktopEnvironment) -> float:
    """Return the proportional set size of a desktop's processes, in MB."""
    process = environment.sandbox.process
    assert process is not None
    total = 0.0
    for one in psutil.Process(process.pid).children(recursive=True):
        try:
            total += one.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
    return total / 1e6


async def measure(tasks: TaskSet, config: Config, slots: int, episodes: int) -> dict[str, Any]:
    """Return what ``episodes`` episodes of each slot cost, after one more that is not counted."""
    backend = DesktopBackend(msgspec.structs.replace(config, env=msgspec.structs.replace(config.env, slots=slots)))
    await backend.start()
    warm_up, costs = DesktopCosts(), DesktopCosts()
    families = [list(family.tasks("train")) for family in tasks.pages]

    async def slot(number: int, into: DesktopCosts, count: int) -> None:
        for episode in range(count):
            family = families[(number + episode) % len(families)]
            await into.play(backend, family[(number + episode) // len(families) % len(family)])

    try:
        await asyncio.gather(*(slot(number, warm_up, 1) for number in range(slots)))
        load, began = psutil.getloadavg()[0], time.perf_counter()
        await asyncio.gather(*(slot(number, costs, episodes) for number in range(slots)))
        seconds = time.perf_counter() - began
    finally:
        await backend.stop()
    steps = sum(len(calls.seconds) for (_, kind), calls in costs.calls.items() if kind == "step")
    return {
        "slots": slots,
        "families": costs.figures(),
        "steps_per_s": round(steps / seconds, 1),
        "episodes": costs.episodes,
        "solved": costs.solved,
        "faults": costs.faults,
        "load_average": [round(load, 1), round(psutil.getloadavg()[0], 1)],
    }
