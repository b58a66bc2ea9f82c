"""Gymnasium environments, also of BrowserGym, each in a process with a separate Python environment.

So their dependencies do not conflict with this project's, and one that hangs or dies costs one episode.
"""

import asyncio
import shutil
from pathlib import Path
from typing import Any, Literal

import msgspec

from dart_adapters.gymnasium_process import GymnasiumProcess
from dart_adapters.screenshots import decode_file
from dart_adapters.settings import RewardedEpisode, convert_options, text_of
from dart_streams.actions import Action
from dart_streams.config import Config
from dart_streams.config.tasks import Task
from dart_streams.errors import ServiceUnavailable
from workers.env.environment import Screen


class GymnasiumOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``env.installed.options``."""

    python: str = ".venv/browsergym/bin/python"
    """Interpreter with the packages."""
    packages: str = "browsergym.miniwob"
    """Modules that register environments on import, separated by spaces."""
    id: str = "browsergym/miniwob.{page}"
    """Id of the environment; ``{page}`` is the task's page. Its seed is the task's."""
    dialect: Literal["browsergym", "typed"] = "browsergym"
    """Actions as calls of BrowserGym, or as a dictionary of this project's fields with their ``type``."""
    browser: str = ""
    """Browser that BrowserGym starts; empty: the one that Playwright has installed."""
    variables: str = "MINIWOB_URL DISPLAY"
    """Environment variables that its process gets beside those of a login, separated by spaces."""
    reset_timeout_s: float = 120.0


def backend(config: Config) -> "GymnasiumBackend":
    """Return the backend ``gymnasium``; raise ConfigError for wrong options."""
    return GymnasiumBackend(
        convert_options(config, GymnasiumOptions), config.env.selected.call_timeout_s, config.env.slots
    )


class GymnasiumBackend:
    """Pool of processes, of which at most ``spare`` free ones are kept."""

    def __init__(self, settings: GymnasiumOptions, call_timeout_s: float, spare: int) -> None:
        self.settings = settings
        self.call_timeout_s = call_timeout_s
        self.spare = spare
        self._free: list[GymnasiumProcess] = []
        self._taken: set[GymnasiumProcess] = set()

    async def start(self) -> None:
        """Check the interpreter; raise ServiceUnavailable if it is missing. Processes start on demand."""
        if shutil.which(self.settings.python) is None:
            raise ServiceUnavailable(
                f"env.installed.options.python: there is no {self.settings.python}: `make adapters` makes BrowserGym's"
            )

    async def open(self, task: Task) -> "GymnasiumEnvironment":
        """Return an environment that has no process yet."""
        return GymnasiumEnvironment(self)

    async def stop(self) -> None:
        """End all processes."""
        ending, self._free, self._taken = [*self._free, *self._taken], [], set()
        await asyncio.gather(*(process.stop() for process in ending))

    async def take(self) -> GymnasiumProcess:
        """Return a process for one episode; raise EnvironmentFault if it does not start."""
        while self._free:
            if (process := self._free.pop()).alive:
                self._taken.add(process)
                return process
            await process.stop()
        settings = self.settings
        packages, variables = settings.packages.split(), settings.variables.split()
        process = GymnasiumProcess(Path(settings.python), packages, settings.browser, variables)
        self._taken.add(process)
        try:
            await process.start()
        except BaseException:
            await asyncio.shield(self.give_back(process, faulty=True))
            raise
        return process

    async def give_back(self, process: GymnasiumProcess, faulty: bool) -> None:
        """Keep a process for the next episode, or end it; never raises."""
        self._taken.discard(process)
        if not faulty and process.alive and len(self._free) < self.spare:
            self._free.append(process)
        else:
            await process.stop()


class GymnasiumEnvironment(RewardedEpisode):
    """One episode. A fault leaves the environment in an unknown state, so its process is ended."""

    def __init__(self, owner: GymnasiumBackend) -> None:
        super().__init__(owner.settings.dialect)
        self.owner = owner
        self.process: GymnasiumProcess | None = None

    async def reset(self, task: Task) -> Screen:
        """Start the task's episode in a process."""
        if self.process is None:
            self.process = await self.owner.take()
        self._restart()
        name = self.owner.settings.id.replace("{page}", task.page)
        return await self._observed(self.owner.settings.reset_timeout_s, call="reset", id=name, seed=task.seed)

    async def _execute(self, action: Action) -> Screen:
        return await self._observed(self.owner.call_timeout_s, call="step", action=self._convert(action))

    async def _observed(self, limit_s: float, **request: Any) -> Screen:
        assert self.process is not None
        try:
            answer = await self.process.ask(limit_s, **request)
        except BaseException:
            await asyncio.shield(self.close(faulty=True))
            raise
        return self._show(decode_file(answer.get("image")), text_of(answer, "instruction"), answer)

    async def close(self, faulty: bool = False) -> None:
        """Give the process back, once; never raises."""
        process, self.process, self.shown = self.process, None, None
        if process is not None:
            await self.owner.give_back(process, faulty)
