"""The steps of a task on its machine: before the first screen, and before the evaluation."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from dart_streams.deadline import Deadline
from workers.env.backends.osworld import browser_setup, steps
from workers.env.backends.osworld.machine import CommandOutcome, Machine
from workers.env.backends.osworld.mirror import Mirror
from workers.env.backends.osworld.tasks import OsworldTask
from workers.env.environment import EnvironmentFault

Settle = Callable[[float], Awaitable[bool]]
"""Waits until a machine is at rest, a number of seconds at most; says whether it is."""
STEP_S = 150.0
"""Of any step: a command has 120 s on the machine."""
AGAIN_S = 0.3
UNTIL_S = 60.0
"""How long a command is repeated until it ends as the task wants."""
PAUSE_S = 1.0
"""The shortest that a written pause becomes on a machine that says when it is at rest."""
REST_S = 10.0
"""How long a machine may take to come to rest after a step that opens or activates something."""


class TaskSetup:
    """Carries out steps on one machine for one episode.

    ``cache`` keeps what commands wrote for the evaluator. With ``settle`` a pause ends when the machine is at rest, and
    steps that open something wait for that too; without, pauses are as long as the task's file says.
    """

    def __init__(
        self, machine: Machine, mirror: Mirror, cache: Path, values: dict[str, str], settle: Settle | None = None
    ) -> None:
        self.machine, self.mirror, self.cache, self.values = machine, mirror, cache, values
        self.settle = settle

    async def carry_out(self, wanted: Sequence[steps.Step], deadline: Deadline) -> None:
        """Carry out the steps in order; raise EnvironmentFault that names the one that failed, or was too slow."""
        for number, step in enumerate(wanted, 1):
            place = f"step {number} of {len(wanted)} ({step.name})"
            if step.refused:
                raise EnvironmentFault(f"{place} {step.refused}")
            try:
                async with asyncio.timeout(min(STEP_S + pause_of(step), deadline.remaining_s)):
                    await self._carry_out(step)
            except TimeoutError:
                raise EnvironmentFault(f"{place}: not done in time") from None
            except (EnvironmentFault, OSError) as fault:
                raise EnvironmentFault(f"{place}: {fault}") from None

    async def _carry_out(self, step: steps.Step) -> None:
        match step:
            case steps.Download(files=files):
                for file in files:
                    await self.machine.upload(file.path, self.mirror.read(file.url))
            case steps.Launch(command=command, shell=shell):
                await self.machine.launch(steps.split_command(command, shell), steps.is_true(shell))
            case steps.ExecuteCommand():
                await self._execute(step)
            case steps.Sleep(seconds=seconds):
                await self._pause(seconds)
            case steps.OpenFile() | steps.ActivateWindow() | steps.CloseWindow():
                await self._on_window(step)
                await self._rest()
            case _:
                await self._in_browser(step)

    async def _on_window(self, step: steps.OpenFile | steps.ActivateWindow | steps.CloseWindow) -> None:
        match step:
            case steps.OpenFile(path=path):
                await self.machine.open_file(path)
            case steps.ActivateWindow(window_name=name, strict=strict, by_class=by_class):
                await self.machine.activate_window(name, strict, by_class)
            case steps.CloseWindow(window_name=name, strict=strict, by_class=by_class):
                await self.machine.close_window(name, strict, by_class)

    async def _in_browser(self, step: steps.Step) -> None:
        match step:
            case steps.ChromeOpenTabs(urls_to_open=urls):
                await browser_setup.open_tabs(self.machine.endpoint, urls)
            case steps.ChromeCloseTabs(urls_to_close=urls):
                await browser_setup.close_tabs(self.machine.endpoint, urls)
            case steps.UpdateBrowseHistory(history=visits):
                await browser_setup.add_history(self.machine, self.mirror, visits)
            case _:
                raise EnvironmentFault("is not supported")

    async def _execute(self, step: steps.ExecuteCommand) -> None:
        command = steps.replace_values(step.command, self.values)
        shell = steps.is_true(step.shell)
        until = Deadline(UNTIL_S)
        while True:
            ended = await self.machine.execute(command, shell)
            for name, text in ((step.stdout, ended["output"]), (step.stderr, ended["error"])):
                if name:
                    cache_path(self.cache, name).write_text(text)
            if not step.until or is_wanted(ended, step.until):
                return
            if until.expired:
                raise EnvironmentFault(f"it still does not end as the task wants: {str(ended)[:200]}")
            await asyncio.sleep(AGAIN_S)

    async def _pause(self, seconds: float) -> None:
        if self.settle is None:
            await asyncio.sleep(seconds)
            return
        began = time.monotonic()
        await asyncio.sleep(min(seconds, PAUSE_S))
        await self.settle(max(seconds, REST_S) - (time.monotonic() - began))

    async def _rest(self) -> None:
        if self.settle is not None:
            await self.settle(REST_S)


def is_wanted(ended: CommandOutcome, until: dict[str, Any]) -> bool:
    """Return whether a command ended as wanted: any of the conditions is enough, as for OSWorld."""
    return (
        ("returncode" in until and ended["returncode"] == until["returncode"])
        or ("stdout" in until and until["stdout"] in ended["output"])
        or ("stderr" in until and until["stderr"] in ended["error"])
    )


def pause_of(step: steps.Step) -> float:
    """Return how long a step is meant to take at least."""
    return step.seconds if isinstance(step, steps.Sleep) else 0.0


def fill_cache(task: OsworldTask, mirror: Mirror, cache: Path) -> None:
    """Put what the evaluator compares with into its cache; raise EnvironmentFault for the first that is missing."""
    for url, name in task.cloud_files():
        target = cache_path(cache, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(mirror.read(url))


def cache_path(cache: Path, name: str) -> Path:
    """Return a file of the cache; raise EnvironmentFault if the name leads out of it."""
    path = (cache / name).resolve()
    if not path.is_relative_to(cache.resolve()):
        raise EnvironmentFault(f"{name!r} is outside of the evaluator's cache")
    return path
