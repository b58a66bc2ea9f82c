"""Cost of concurrent desktops: ``dart-streams bench desktops``.

Slots in one process let the oracle play task families, without broker, policy or store. CPU time is that of a desktop's
control group around each call; without one it is not measured. The first episode of each slot does not count.
"""

import asyncio
import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import psutil

from dart_desktops.desktop.backend import DesktopBackend
from dart_desktops.desktop.environment import DesktopEnvironment
from dart_streams.actions import Action, Click
from dart_streams.config import Config
from dart_streams.config.tasks import Task
from dart_streams.portable_math import interpolate_quantile
from workers.env.environment import EnvironmentFault

IDLE_S = 10.0
"""Seconds over which idle cost is measured."""
PROBES = 4
"""Plain clicks into each window: a policy's most frequent step."""


class Calls:
    """Seconds and core-seconds of calls of one kind."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.core_s: list[float] = []

    def figures(self) -> dict[str, Any]:
        """Return time quantiles (ms), and mean and median core-ms (None if not measured)."""
        if not self.seconds:
            return {"count": 0}
        ordered, cost = sorted(self.seconds), sorted(self.core_s)
        return {
            "count": len(ordered),
            "p50_ms": round(1000 * interpolate_quantile(ordered, 0.5), 1),
            "p99_ms": round(1000 * interpolate_quantile(ordered, 0.99), 1),
            "core_ms": round(1000 * sum(cost) / len(cost), 1) if cost else None,
            "core_ms_p50": round(1000 * interpolate_quantile(cost, 0.5), 1) if cost else None,
        }


class DesktopCosts:
    """Cost of the calls of each family."""

    def __init__(self) -> None:
        self.calls: defaultdict[tuple[str, str], Calls] = defaultdict(Calls)
        self.memory_mb: defaultdict[str, list[float]] = defaultdict(list)
        self.starts: defaultdict[str, Counter[bytes | None]] = defaultdict(Counter)
        self.faults: list[str] = []
        self.solved = self.episodes = 0

    async def play(self, backend: DesktopBackend, task: Task, only_reset: bool = False) -> None:
        """Let the oracle play an episode, or only reset it, and count the calls."""
        began = time.perf_counter()
        environment = await backend.open(task)
        prepared = environment.prepared is not None
        try:
            start = await self._timed(
                environment, task.page, "handed over" if prepared else "reset", environment.reset(task)
            )
            self.calls[task.page, "open and reset"].seconds.append(time.perf_counter() - began)
            self.starts[task.task_id][start.image] += 1
            if only_reset:
                return
            number = 0
            async for action in environment.demonstrate(task):
                number += 1
                await self._timed(environment, task.page, kind_of(action), environment.step(action, str(number)))
            self.memory_mb[task.page].append(pss_mb(environment))
            reward = await environment.evaluate()
            self.solved += reward == 1  # Not of an awaited value: other slots count meanwhile.
            self.episodes += 1
        except EnvironmentFault as fault:
            self.faults.append(f"{task.task_id}: {fault}")
        finally:
            await environment.close()

    async def probe(self, environment: DesktopEnvironment, task: Task) -> None:
        """Count plain clicks that hit no control."""
        for number in range(PROBES):
            width, height = environment.size
            click = Click(width * (3 + number) // 8, height * (3 + number % 2) // 8)
            await self._timed(environment, task.page, "click", environment.step(click, f"probe-{number}"))

    async def _timed(self, environment: DesktopEnvironment, page: str, kind: str, call: Any) -> Any:
        group = environment.sandbox.group
        before, began = group.cpu_s() if group else None, time.perf_counter()
        result = await call
        calls = self.calls[page, kind]
        calls.seconds.append(time.perf_counter() - began)
        after = group.cpu_s() if group else None
        if before is not None and after is not None:
            calls.core_s.append(after - before)
        return result

    def figures(self) -> dict[str, Any]:
        """Return the metrics by family."""
        pages = sorted({page for page, _ in self.calls})
        return {
            page: {kind: calls.figures() for (of, kind), calls in sorted(self.calls.items()) if of == page}
            | {"pss_mb": round(interpolate_quantile(sorted(self.memory_mb[page] or [0.0]), 0.5))}
            for page in pages
        }


def kind_of(action: Action) -> str:
    """Return an action's name in the metrics; ``save`` is separate, as the application then works."""
    name = type(action).__name__.lower()
    keys = getattr(action, "keys", ())
    return "save" if tuple(keys) == ("ctrl", "s") else name


def pss_mb(environment: DesktopEnvironment) -> float:
    """Return the proportional set size of a desktop's processes, in MB."""
    process = environment.sandbox.process
    assert process is not None
    total = 0.0
    for one in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += one.memory_full_info().pss
    return total / 1e6


async def side_by_side(
    backend: DesktopBackend, tasks: Sequence[Task], costs: DesktopCosts, slots: int
) -> dict[str, Any]:
    """Hold ``slots`` desktops at once; return their memory by family and their idle cost."""
    environments = [(await backend.open(task), task) for task in (tasks[n % len(tasks)] for n in range(slots))]
    try:
        await asyncio.gather(*(environment.reset(task) for environment, task in environments))
        await asyncio.gather(*(costs.probe(environment, task) for environment, task in environments))
        before = [cpu_s(environment) for environment, _ in environments]
        await asyncio.sleep(IDLE_S)
        spent = [cpu_s(environment) - was for (environment, _), was in zip(environments, before, strict=True)]
        memory: defaultdict[str, list[float]] = defaultdict(list)
        for environment, task in environments:
            memory[task.page].append(pss_mb(environment))
    finally:
        await asyncio.gather(*(environment.close() for environment, _ in environments))
    return {
        "desktops": slots,
        "pss_mb": {page: round(sum(values) / len(values)) for page, values in sorted(memory.items())},
        "idle_core_ms_per_s": round(1000 * sum(spent) / IDLE_S / slots, 2),
    }


def cpu_s(environment: DesktopEnvironment) -> float:
    """Return the CPU seconds of a desktop; 0 if unknown."""
    group = environment.sandbox.group
    return (group.cpu_s() if group else None) or 0.0


@contextlib.contextmanager
def busy_processors(count: int) -> Iterator[None]:
    """Keep ``count`` processors busy at this process's priority."""
    running = [psutil.Popen(["/bin/sh", "-c", "while :; do :; done"]) for _ in range(count)]
    try:
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


async def hand_overs(config: Config, task: Task, count: int) -> dict[str, Any]:
    """Return the time to receive a prepared desktop, ``count`` times in a row."""
    backend, costs = DesktopBackend(config), DesktopCosts()
    await backend.start()
    try:
        for _ in range(count):
            backend.expect(task)
            await backend.spares.prepared()
            await costs.play(backend, task)
    finally:
        await backend.stop()
    return costs.calls[task.page, "open and reset"].figures() | {"faults": costs.faults}


def tasks_of(family: str, seeds: int = 40) -> list[Task]:
    """Return the tasks of a family."""
    return [Task(environment="desktop", page=family, seed=seed, max_steps=20, split="train") for seed in range(seeds)]


async def measure(
    families: Sequence[Sequence[Task]],
    config: Config,
    slots: int,
    episodes: int,
    *,
    hogged: int = 0,
    same: bool = False,
) -> dict[str, Any]:
    """Return the cost of ``episodes`` episodes per slot, after a warm-up episode.

    ``hogged`` processors are kept busy. With ``same`` each family's one task is only reset, and first screens are
    compared.
    """
    env = msgspec.structs.replace(config.env, slots=slots)
    backend = DesktopBackend(msgspec.structs.replace(config, env=env))
    await backend.start()
    warm_up, costs = DesktopCosts(), DesktopCosts()

    def turns_of(slot: int, count: int) -> list[Task]:
        turns = [(families[(slot + turn) % len(families)], (slot + turn) // len(families)) for turn in range(count)]
        return [family[0 if same else number % len(family)] for family, number in turns]

    async def play(slot: int, into: DesktopCosts, count: int) -> None:
        ahead = turns_of(slot, count)
        for number, task in enumerate(ahead):
            if slot < backend.ahead and number + 1 < count:
                backend.expect(ahead[number + 1])
            await into.play(backend, task, only_reset=same)

    try:
        with busy_processors(hogged):
            await asyncio.gather(*(play(slot, warm_up, 1) for slot in range(slots)))
            load, began = psutil.getloadavg()[0], time.perf_counter()
            await asyncio.gather(*(play(slot, costs, episodes) for slot in range(slots)))
            seconds = time.perf_counter() - began
            held = await side_by_side(backend, [family[0] for family in families], costs, slots)
    finally:
        await backend.stop()
    steps = sum(
        len(calls.seconds) for (_, kind), calls in costs.calls.items() if kind not in {"open and reset", "reset"}
    )
    return {
        "slots": slots,
        "families": costs.figures(),
        "side_by_side": held,
        "steps_per_s": round(steps / seconds, 1),
        "episodes": costs.episodes,
        "solved": costs.solved,
        "start_screens": {name: len(found) for name, found in sorted(costs.starts.items())} if same else None,
        "faults": costs.faults,
        "load_average": [round(load, 1), round(psutil.getloadavg()[0], 1)],
    }
