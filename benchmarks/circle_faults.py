"""Faults of Chromium in a run of the circle: ``dart-streams bench circle --browser-faults N``.

Everything is real. In turn a browser is killed, a browser is frozen for ever, a renderer is killed, and a renderer is
frozen: to the environment worker a frozen one is a hang.
"""

import asyncio
import itertools
import signal
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import psutil
import structlog
from rich.console import Console

from benchmarks.browser_faults import back_s
from benchmarks.circle_run import bounded, session_of
from dart_streams.clock import now_ms
from dart_streams.config import Config
from dart_streams.console.launch import process_registry
from dart_streams.console.launch.session import live
from dart_streams.console.launch.training_run import TrainingRun
from dart_streams.console.runs import order_accounts
from dart_streams.console.runs import run_folder as folder
from dart_streams.console.runs.run_log import read_log
from dart_streams.console.runs.run_state import RunState
from dart_streams.errors import UserError
from topics import observations, rollout_orders, trajectories

Fault = Literal["browser killed", "browser frozen", "renderer killed", "renderer frozen"]
SIGNALS: dict[str, signal.Signals] = {"killed": signal.SIGKILL, "frozen": signal.SIGSTOP}
FIRST_S, EVERY_S = 45.0, 15.0
"""When the first fault comes, in the training phase, and the time from one to the next."""
READ = (rollout_orders.TOPIC, observations.TOPIC, trajectories.TOPIC)

log = structlog.get_logger()


class CausedFault(NamedTuple):
    """A fault that was caused, at an epoch millisecond."""

    kind: Fault
    at_ms: int


def browsers(made: folder.RunFolder) -> list[psutil.Process]:
    """Return the browsers of the run's environment workers, each the root of its tree."""
    registry = process_registry.read(made.path / "processes.json")
    workers = [one.process() for one in registry.children if one.name.startswith("env")] if registry else []
    below = [child for worker in workers if worker for child in worker.children(recursive=True)]
    return [one for one in below if "chrom" in one.name() and not type_of(one)]


def type_of(process: psutil.Process) -> str:
    """Return what a process of Chromium is, by its command line; nothing for the browser itself."""
    return next((part[7:] for part in process.cmdline() if part.startswith("--type=")), "")


def cause(fault: Fault, found: Sequence[psutil.Process]) -> None:
    """Break the first browser, or the renderer of it that has worked the most."""
    what, how = fault.split()
    victim = found[0]
    if what == "renderer":
        renderers = [one for one in victim.children(recursive=True) if type_of(one) == "renderer"]
        victim = max(renderers, key=lambda one: sum(one.cpu_times()[:2]))
    victim.send_signal(SIGNALS[how])


class FaultInjector(threading.Thread):
    """Causes ``count`` faults, each in the browser after the last one's; ``caused`` has those that were."""

    def __init__(self, made: folder.RunFolder, count: int) -> None:
        super().__init__(name="faults", daemon=True)
        self.made = made
        self.left = list(itertools.islice(itertools.cycle(get_args(Fault)), count))
        self.caused: list[CausedFault] = []
        self.stopping = threading.Event()

    def run(self) -> None:
        """Cause the faults, from the moment at which the run trains."""
        while self.made.journal().phase("circle") is None:
            if self.stopping.wait(0.5):
                return
        wait_s = FIRST_S
        for number, fault in enumerate(self.left):
            if self.stopping.wait(wait_s):
                return
            wait_s = EVERY_S
            found = browsers(self.made)
            turn = number % max(len(found), 1)
            try:
                cause(fault, found[turn:] + found[:turn])
            except (psutil.NoSuchProcess, IndexError, ValueError):
                log.warning("fault not caused", fault=fault, browsers=len(found), reason="no such process now")
                continue
            self.caused.append(CausedFault(fault, now_ms()))


def measure(config: Config, count: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """Run a deployment, cause so many faults, and return what each cost.

    Raises
    ------
    UserError
        If a fault could not be caused, since then nothing is shown.
    """
    minutes = (FIRST_S + EVERY_S * (count + 1)) / 60
    tell(f"{count} faults in a run of {minutes:.1f} minutes and what starting and draining take")
    name = f"faults-{uuid.uuid4().hex[:6]}"
    made = folder.create(bounded(config, minutes), Path(config.tasks.file), name, resume=False)
    injector = FaultInjector(made, count)
    found: list[dict[str, Any]] = []

    async def finish(run: TrainingRun) -> None:
        injector.stopping.set()
        state = await asyncio.to_thread(lambda: RunState().fold(read_log(run.config.bus, READ)))
        lost = order_accounts.lost(state, run.lags)
        found.append(costs(injector.caused, state) | {"lost": None if lost is None else len(lost)})

    injector.start()
    live(made, lambda shown: session_of(made, Console(file=shown), finish))
    if len(injector.caused) < count:
        raise UserError(f"{len(injector.caused)} of {count} faults could be caused: see {made.path / 'logs'}")
    return found[0]


def costs(caused: Sequence[CausedFault], state: RunState) -> dict[str, Any]:
    """Return what each fault cost, and how the run's episodes ended."""
    ended = sorted(one.finished_ms for one in state.finished.values() if one.reward is not None)
    found = []
    for fault in caused:
        before = sum(fault.at_ms - 1000 * EVERY_S <= at_ms < fault.at_ms for at_ms in ended) / EVERY_S
        in_time = [at_ms / 1000 for at_ms in ended if at_ms < fault.at_ms + 1000 * EVERY_S]
        found.append(
            {
                "fault": fault.kind,
                "episodes_per_s_before": round(before, 1),
                "back_s": back_s(in_time, fault.at_ms / 1000, before),
            }
        )
    return {
        "faults": found,
        "orders": len(state.orders),
        "outcomes": dict(Counter(one.outcome for one in state.finished.values())),
        "load_average": round(psutil.getloadavg()[0], 1),
    }
