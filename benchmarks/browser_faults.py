"""How soon the episodes go on at their rate after a fault of Chromium's: ``dart-streams bench browser --faults``.

Slots in one process play all the time, as in :mod:`benchmarks.browser_cost`. In turn a renderer is killed, a page loops
for ever in a script, another one in its frame, and the browser is killed.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Literal, get_args

import psutil

from benchmarks.browser_cost import PlayedEpisode, episodes, play, play_all, processes
from dart_streams.config import Config
from dart_streams.config.tasks import Task, TaskSet
from workers.env.backends.miniwob.backend import MiniwobBackend
from workers.env.environment import EnvironmentFault

Fault = Literal["renderer killed", "script that loops", "frame that loops", "browser killed"]
LOOPS: dict[Fault, str] = {
    "script that loops": "while (true) {}",
    "frame that loops": "requestAnimationFrame(() => { while (true) {} }); 0",
}
BEFORE_S, AFTER_S = 8.0, 20.0
"""How long episodes are counted before a fault, and observed after it."""
WINDOW_S = 2.0
BACK = 0.8
"""Share of the rate before at which episodes go on as before."""


def back_s(ended_s: Sequence[float], fault_s: float, rate: float) -> float | None:
    """Return after how many seconds a window of ``WINDOW_S`` began with ``BACK`` of ``rate`` episodes a second.

    ``ended_s`` are the times at which episodes ended without a fault, in order. None if there is no such window.
    """
    after = [ended - fault_s for ended in ended_s if ended >= fault_s]
    for start in [0.0, *after]:
        if sum(start <= ended < start + WINDOW_S for ended in after) >= BACK * rate * WINDOW_S:
            return round(start, 2)
    return None


class Playing:
    """Slots that play until they are stopped, and when each episode ended."""

    def __init__(self, backend: MiniwobBackend, tasks: TaskSet) -> None:
        self.backend = backend
        self.waiting = iter(episodes(tasks, 1_000_000, 1))
        self.ended: list[tuple[float, PlayedEpisode]] = []

    async def slot(self) -> None:
        """Play one episode after another."""
        for task, rollout in self.waiting:
            episode = await play(self.backend, task, rollout)
            self.ended.append((time.perf_counter(), episode))

    def between(self, start: float, end: float) -> list[PlayedEpisode]:
        """Return the episodes that ended in a span of time."""
        return [episode for ended, episode in self.ended if start <= ended < end]


async def loop_for_ever(backend: MiniwobBackend, task: Task, script: str) -> None:
    """Play an episode whose page loops."""
    page = await backend.open(task)
    try:
        await page.reset(task)
        await page.evaluate_script(script)
        await page.target.draw()
    except EnvironmentFault:
        pass
    finally:
        await page.close()


async def inject(fault: Fault, backend: MiniwobBackend, task: Task) -> None:
    """Break something; the most used renderer or the browser, or a page of one more episode."""
    if fault in LOOPS:
        await loop_for_ever(backend, task, LOOPS[fault])
    elif fault == "browser killed":
        processes(backend)[0].kill()
    else:
        renderers = [one for one in processes(backend) if "--type=renderer" in one.cmdline()]
        max(renderers, key=lambda one: sum(one.cpu_times()[:2])).kill()


async def observe(fault: Fault, playing: Playing, task: Task) -> dict[str, Any]:
    """Cause one fault; return what it cost."""
    started = time.perf_counter()
    await asyncio.sleep(BEFORE_S)
    fault_s = time.perf_counter()
    rate = len([one for one in playing.between(started, fault_s) if not one.fault]) / (fault_s - started)
    injected = asyncio.create_task(inject(fault, playing.backend, task))
    await asyncio.sleep(AFTER_S)
    await injected
    after = playing.between(fault_s, time.perf_counter())
    return {
        "fault": fault,
        "episodes_per_s_before": round(rate, 1),
        "back_s": back_s([ended for ended, one in playing.ended if not one.fault], fault_s, rate),
        "other_episodes_hit": sum(bool(one.fault) for one in after),
        "reasons": sorted({one.fault for one in after if one.fault}),
    }


async def measure(tasks: TaskSet, config: Config, count: int, warm_up: int) -> dict[str, Any]:
    """Return what each of ``count`` faults cost, and after how long episodes went on as before."""
    backend = MiniwobBackend(config)
    await backend.start()
    try:
        await play_all(backend, episodes(tasks, warm_up, -1), config.env.slots)
        playing, task = Playing(backend, tasks), tasks.train[0]
        slots = [asyncio.create_task(playing.slot()) for _ in range(config.env.slots)]
        kinds = get_args(Fault)
        found = [await observe(kinds[number % len(kinds)], playing, task) for number in range(count)]
        for slot in slots:
            slot.cancel()
        await asyncio.gather(*slots, return_exceptions=True)
    finally:
        await backend.stop()
    return {"faults": found, "load_average": round(psutil.getloadavg()[0], 1)}
