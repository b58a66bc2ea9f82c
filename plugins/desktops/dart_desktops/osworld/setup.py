"""Execution of a task's steps on its machine, before the first screen and before the evaluation."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dart_desktops.osworld import browser_setup, steps
from dart_desktops.osworld.machine import CommandOutcome, Machine, WindowVerb
from dart_desktops.osworld.mirror import EMPTY_HISTORY, Mirror
from dart_desktops.osworld.settling import wait_idle
from dart_desktops.osworld.tasks import OsworldTask
from dart_streams.deadline import Deadline
from workers.env.environment import EnvironmentFault

STEP_S = 150.0
"""Time limit of a step; a command has 120 s on the machine."""
RETRY_INTERVAL_S = 0.3
UNTIL_S = 60.0
"""Time limit for a repeated command to end as the task requires."""
PAUSE_S = 1.0
"""Minimum of a task's pauses on a machine that can say when it is idle."""
REST_S = 10.0
"""Time limit for a machine to become idle after a step that opens or activates a window."""


class TaskSetup:
    """Executes steps on one machine for one episode.

    ``cache`` keeps output of commands for the evaluator. With ``settles`` a pause ends when the machine is idle, and
    steps that open a window wait for that too; without, pauses last as long as the task's file says.
    """

    def __init__(
        self, machine: Machine, mirror: Mirror, cache: Path, values: dict[str, str], settles: bool = False
    ) -> None:
        self.machine, self.mirror, self.cache, self.values = machine, mirror, cache, values
        self.settles = settles

    async def carry_out(self, sequence: Sequence[steps.Step], deadline: Deadline) -> None:
        """Execute the steps in order; raise EnvironmentFault that names the step that failed or was too slow."""
        for number, step in enumerate(sequence, 1):
            place = f"step {number} of {len(sequence)} ({step.name})"
            if step.refused:
                raise EnvironmentFault(f"{place} {step.refused}")
            try:
                pause_s = step.seconds if isinstance(step, steps.Sleep) else 0.0
                async with asyncio.timeout(min(STEP_S + pause_s, deadline.remaining_s)):
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
            case steps.OpenFile(path=path):
                await self.machine.open_file(path)
            case steps.ActivateWindow(window_name=name, strict=strict, by_class=by_class):
                verb: WindowVerb = "close_window" if isinstance(step, steps.CloseWindow) else "activate_window"
                await self.machine.manage_window(verb, name, strict, by_class)
            case _:
                await self._in_browser(step)
        if self.settles and isinstance(step, steps.OpenFile | steps.ActivateWindow):
            await wait_idle(self.machine, REST_S)

    async def _in_browser(self, step: steps.Step) -> None:
        match step:
            case steps.ChromeOpenTabs(urls_to_open=urls):
                if self.settles:
                    await wait_idle(self.machine, REST_S)
                await browser_setup.open_tabs(self.machine.endpoint, urls)
            case steps.ChromeCloseTabs(urls_to_close=urls):
                await browser_setup.close_tabs(self.machine.endpoint, urls)
            case steps.UpdateBrowseHistory(history=visits):
                empty = self.mirror.read(EMPTY_HISTORY)
                history = browser_setup.with_visits(empty, visits, time.time())
                await self.machine.upload(browser_setup.HISTORY, history)  # The browser must not run yet.
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
                    cache_path(self.cache, name).write_text(text, encoding="utf-8")
            if not step.until or meets_condition(ended, step.until):
                return
            if until.expired:
                raise EnvironmentFault(f"it still does not end as the task wants: {str(ended)[:200]}")
            await asyncio.sleep(RETRY_INTERVAL_S)

    async def _pause(self, seconds: float) -> None:
        if not self.settles:
            await asyncio.sleep(seconds)
            return
        began = time.monotonic()
        await asyncio.sleep(min(seconds, PAUSE_S))
        await wait_idle(self.machine, max(seconds, REST_S) - (time.monotonic() - began))


def meets_condition(ended: CommandOutcome, until: dict[str, Any]) -> bool:
    """Return whether a command meets any of the conditions, as OSWorld requires."""
    return (
        ("returncode" in until and ended["returncode"] == until["returncode"])
        or ("stdout" in until and until["stdout"] in ended["output"])
        or ("stderr" in until and until["stderr"] in ended["error"])
    )


def fill_cache(task: OsworldTask, mirror: Mirror, cache: Path) -> None:
    """Copy the evaluator's reference files into its cache; raise EnvironmentFault for the first that is missing."""
    for url, name in task.cloud_files():
        target = cache_path(cache, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(mirror.read(url))


def cache_path(cache: Path, name: str) -> Path:
    """Return the path of a file in the cache; raise EnvironmentFault if the name leads out of it."""
    path = (cache / name).resolve()
    if not path.is_relative_to(cache.resolve()):
        raise EnvironmentFault(f"{name!r} is outside of the evaluator's cache")
    return path
