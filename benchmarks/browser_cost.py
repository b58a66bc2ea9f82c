"""Chromium's cost per step for each way of taking screens: ``dart-streams bench browser``.

Slots in one process play a task set without broker, policy or store; half of the actions are the oracle's, half random
clicks. Both ways take turns with the same episodes, so their screens can be compared.
"""

import asyncio
import hashlib
import io
import random
import resource
import time
from typing import Any

import msgspec
import psutil
from PIL import Image

from dart_streams.actions import Action, Click
from dart_streams.config import Capture, Config
from dart_streams.config.tasks import Task, TaskSet
from dart_streams.portable_math import interpolate_quantile
from workers.env import metrics
from workers.env.backends.miniwob.backend import MiniwobBackend
from workers.env.backends.miniwob.capture import HEIGHT, WIDTH
from workers.env.backends.miniwob.page import MiniwobPage
from workers.env.environment import EnvironmentFault, Screen

CAPTURES: tuple[Capture, ...] = ("begin-frame", "screenshot")
SEEDS = 10
"""Training tasks played of each page."""
ROLLOUTS = 8
"""Consecutive rollouts of a task, as in a group."""
TOP = 50
"""First pixel below the instruction; clicks go beneath it."""


class PlayedEpisode(msgspec.Struct, frozen=True):
    """An episode: times in seconds, a digest of each screen, and its ``fault``, if any."""

    reset_s: float
    step_s: tuple[float, ...]
    screens: tuple[str, ...]
    fault: str = ""


def draw_episodes(tasks: TaskSet, count: int, seed: int) -> list[tuple[Task, int]]:
    """Return random tasks, each ``ROLLOUTS`` times in a row, with the rollout's number."""
    rng = random.Random(seed)
    chosen = [task for family in tasks.pages for task in family.tasks("train")[:SEEDS]]
    groups = [rng.choice(chosen) for _ in range(-(-count // ROLLOUTS))]
    return [(task, rollout) for task in groups for rollout in range(ROLLOUTS)][:count]


async def play(backend: MiniwobBackend, task: Task, rollout: int) -> PlayedEpisode:
    """Play one episode, determined by task and rollout."""
    rng = random.Random(f"{task.task_id} {rollout}")
    started, steps, screens = time.perf_counter(), list[float](), list[str]()
    reset_s, page = 0.0, None
    try:
        page = await backend.open(task)
        screens.append(screen_digest(await page.reset(task)))
        reset_s = time.perf_counter() - started
        for number in range(task.max_steps):
            action = await next_action(page, task, rng)
            started = time.perf_counter()
            screen = await page.step(action, str(number), number + 1 == task.max_steps)
            steps.append(time.perf_counter() - started)
            screens.append(screen_digest(screen))
            if screen.done:
                break
        return PlayedEpisode(reset_s, tuple(steps), tuple(screens))
    except EnvironmentFault as fault:
        return PlayedEpisode(reset_s, tuple(steps), tuple(screens), str(fault))
    finally:
        if page is not None:
            await page.close()


async def next_action(page: MiniwobPage, task: Task, rng: random.Random) -> Action:
    """Return the oracle's action or, half of the time, a random click."""
    anywhere = Click(rng.randrange(WIDTH), rng.randrange(TOP, HEIGHT))
    return anywhere if rng.random() < 0.5 else await anext(page.demonstrate(task), anywhere)


def screen_digest(screen: Screen) -> str:
    """Return the digest of a screen's pixels; empty without an image."""
    if screen.image is None:
        return ""
    return hashlib.sha256(Image.open(io.BytesIO(screen.image)).convert("RGB").tobytes()).hexdigest()


async def play_all(backend: MiniwobBackend, todo: list[tuple[Task, int]], slots: int) -> list[PlayedEpisode]:
    """Play episodes in ``slots`` slots; return them in order."""
    played: dict[int, PlayedEpisode] = {}
    waiting = iter(enumerate(todo))

    async def slot() -> None:
        for number, (task, rollout) in waiting:
            played[number] = await play(backend, task, rollout)

    await asyncio.gather(*(slot() for _ in range(slots)))
    return [played[number] for number in range(len(todo))]


def browser_processes(backend: MiniwobBackend) -> list[psutil.Process]:
    """Return the processes of all browsers."""
    roots = [psutil.Process(one.browser.process.pid) for one in backend.browsers if one.browser is not None]
    return [process for root in roots for process in (root, *root.children(recursive=True))]


def cpu_s(backend: MiniwobBackend) -> float:
    """Return the CPU seconds of the browsers so far, ended children included."""
    total = 0.0
    for process in browser_processes(backend):
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return total


def pss_mb(backend: MiniwobBackend) -> float:
    """Return the proportional set size of the browsers, in MB."""
    return sum(process.memory_full_info().pss for process in browser_processes(backend)) / 1e6


class CaptureCost:
    """Accumulated cost of one way of taking screens."""

    def __init__(self, backend: MiniwobBackend) -> None:
        self.backend = backend
        self.played: list[PlayedEpisode] = []
        self.core_ms: list[float] = []
        self.seconds = self.cpu_s = self.worker_cpu_s = 0.0
        self.loads = 0

    async def turn(self, todo: list[tuple[Task, int]], slots: int) -> None:
        """Play and count a round."""
        cpu, own, started = cpu_s(self.backend), own_cpu_s(), time.perf_counter()
        loads = metrics.documents_loaded.total
        played = await play_all(self.backend, todo, slots)
        cpu = cpu_s(self.backend) - cpu
        self.seconds += time.perf_counter() - started
        self.worker_cpu_s += own_cpu_s() - own
        self.cpu_s += cpu
        self.loads += metrics.documents_loaded.total - loads
        self.core_ms.append(1000 * cpu / max(1, sum(len(episode.step_s) for episode in played)))
        self.played += played

    def figures(self) -> dict[str, Any]:
        """Return the metrics."""
        step_s = sorted(taken for episode in self.played for taken in episode.step_s) or [0.0]
        reset_s = sorted(episode.reset_s for episode in self.played if not episode.fault) or [0.0]
        steps = len(step_s)
        return {
            "core_ms_per_step": round(1000 * self.cpu_s / steps, 1),
            "core_ms_per_step_by_round": [round(one, 1) for one in self.core_ms],
            "loop_core_ms_per_step": round(1000 * self.worker_cpu_s / steps, 1),
            "steps": len(step_s),
            "episodes": len(self.played),
            "documents_loaded": self.loads,
            "faults": sum(bool(episode.fault) for episode in self.played),
            "steps_per_s": round(steps / self.seconds, 1),
            "cores": round(self.cpu_s / self.seconds, 2),
            "step_ms_p50": round(1000 * interpolate_quantile(step_s, 0.5), 1),
            "reset_ms_p50": round(1000 * interpolate_quantile(reset_s, 0.5), 1),
            "processes": len(browser_processes(self.backend)),
            "pss_mb": round(pss_mb(self.backend)),
        }


def own_cpu_s() -> float:
    """Return the CPU seconds of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def compare_screens(costs: dict[Capture, CaptureCost]) -> dict[str, int]:
    """Return how many screens of the same states are equal, pixel by pixel."""
    one, other = (cost.played for cost in list(costs.values())[:2])
    pairs = [pair for a, b in zip(one, other, strict=True) for pair in zip(a.screens, b.screens, strict=False)]
    taken = [pair for pair in pairs if all(pair)]
    return {"compared": len(taken), "equal": sum(a == b for a, b in taken)}


async def measure(tasks: TaskSet, config: Config, rounds: int, count: int, warm_up: int) -> dict[str, Any]:
    """Return the cost of each way of taking screens, over ``rounds`` turns of ``count`` episodes."""
    replace, own = msgspec.structs.replace, config.env.miniwob
    costs: dict[Capture, CaptureCost] = {}
    try:
        for capture in CAPTURES:
            chosen = replace(config, env=replace(config.env, miniwob=replace(own, capture=capture)))
            costs[capture] = CaptureCost(MiniwobBackend(chosen))
            await costs[capture].backend.start()
            await play_all(costs[capture].backend, draw_episodes(tasks, warm_up, -1), config.env.slots)
        load = psutil.getloadavg()[0]
        for number in range(rounds):
            for cost in list(costs.values())[:: 1 if number % 2 else -1]:
                await cost.turn(draw_episodes(tasks, count, number), config.env.slots)
        figures = {capture: cost.figures() for capture, cost in costs.items()}
    finally:
        for cost in costs.values():
            await cost.backend.stop()
    ratio = figures["screenshot"]["core_ms_per_step"] / figures["begin-frame"]["core_ms_per_step"]
    result = {"captures": figures, "screenshot_to_begin_frame": round(ratio, 2), "screens": compare_screens(costs)}
    return result | {"load_average": [round(load, 1), round(psutil.getloadavg()[0], 1)]}
