"""AndroidWorld's servers (``server/android_server.py`` of its repository); each emulator plays one episode at a time.

A task's ``page`` is its type and its ``seed`` its index. Actions without a JSON action do nothing, see
:func:`~dart_adapters.action_formats.to_androidworld`. ``finished(content)`` is the phone's ``answer``,
and ``call_user`` its status ``infeasible``. The functions ``open_app`` and ``set_text`` are offered.
"""

import asyncio
import contextlib
from typing import Any
from urllib.parse import urlencode

import msgspec

from dart_adapters.action_formats import Held, to_androidworld
from dart_adapters.screenshots import decode_file, take_rows
from dart_adapters.settings import clamp_reward, convert_options, number_of, text_of
from dart_phones.gestures import keys_after
from dart_phones.offers import OFFERED
from dart_streams.actions import Action, Call
from dart_streams.config import Config
from dart_streams.config.tasks import Task
from dart_streams.errors import ConfigError, ServiceUnavailable
from workers.env.backends.connection import Connection
from workers.env.environment import EnvironmentBackend, EnvironmentFault, Screen, screen_of
from workers.env.returned_values import describe_value


class AndroidWorldOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``env.installed.options``."""

    urls: str
    """URLs of the servers, separated by spaces: ``http://host:5000``."""
    reset_timeout_s: float = 120.0
    """Time limit of a reset, including the wait for a free server."""


def backend(config: Config) -> "AndroidWorldBackend":
    """Return the backend ``androidworld``; raise ConfigError for wrong options."""
    settings = convert_options(config, AndroidWorldOptions)
    if not settings.urls.split():
        raise ConfigError("env.installed.options.urls names no server")
    return AndroidWorldBackend(settings, config.env.selected.call_timeout_s)


class AndroidWorldBackend(EnvironmentBackend):
    """The servers, each for one episode at a time."""

    def __init__(self, settings: AndroidWorldOptions, call_timeout_s: float) -> None:
        self.settings = settings
        self.call_timeout_s = call_timeout_s
        self.free: asyncio.LifoQueue[str] = asyncio.LifoQueue()
        for url in settings.urls.split():
            self.free.put_nowait(url.rstrip("/"))

    async def start(self) -> None:
        """Check the servers' health; raise ServiceUnavailable for one that fails."""
        for url in self.settings.urls.split():
            try:
                async with Connection(url, self.call_timeout_s) as server:
                    await server.send("GET", "/health")
            except EnvironmentFault as fault:
                raise ServiceUnavailable(f"env.installed.options.urls: {fault}: start AndroidWorld's server") from None

    async def open(self, task: Task) -> "AndroidWorldEnvironment":
        """Return an environment that has no server yet."""
        return AndroidWorldEnvironment(self)


class AndroidWorldEnvironment:
    """One episode."""

    def __init__(self, owner: AndroidWorldBackend) -> None:
        self.owner = owner
        self.url = ""
        self.goal = ""
        self.task: Task | None = None
        self._executed: set[str] = set()
        self._held: Held = frozenset()

    async def answer(self, text: str) -> None:
        """Answer the task's question, for its score."""
        await self._execute({"action_type": "answer", "text": text})

    async def give_up(self) -> float:
        """Declare the task infeasible; return the score."""
        await self._execute({"action_type": "status", "goal_status": "infeasible"})
        return await self.evaluate()

    async def reset(self, task: Task) -> Screen:
        """Take a server, go home, and initialize the task."""
        try:
            async with asyncio.timeout(self.owner.settings.reset_timeout_s):
                await self._tear_down()
                if not self.url:
                    self.url = await self.owner.free.get()
                self._executed.clear()
                self._held = frozenset()
                await self._ask("POST", "/reset", go_home="true")
                self.task = task
                await self._ask("POST", "/task/initialize", **task_query(task))
                self.goal = text_of(await self._ask("GET", "/task/goal", **task_query(task)), "goal")
                return await self._screen()
        except TimeoutError:
            server = self.url or "a free server"
            raise EnvironmentFault(f"{server}: no start within {self.owner.settings.reset_timeout_s:g} s") from None

    async def step(self, action: Action, action_id: str, last: bool = False) -> Screen:
        """Execute an action, given in pixels of the phone, at most once per id."""
        self._required()
        if action_id not in self._executed:
            self._executed.add(action_id)  # Before it is sent: it may be executed though no response comes.
            held, self._held = self._held, keys_after(action, self._held)
            if (body := to_androidworld(action, held)) is not None:
                await self._execute(body)
        screen = await self._screen()
        return msgspec.structs.replace(screen, returned="done") if isinstance(action, Call) else screen

    async def evaluate(self) -> float:
        """Return the score of the present state."""
        response = await self._ask("GET", "/task/score", **task_query(self._required()))
        if response.get("score") is None:
            raise EnvironmentFault(f"{self.url}/task/score answers no score: {describe_value(response)}")
        return clamp_reward(number_of(response, "score"))

    async def close(self) -> None:
        """Tear the task down, and give the server back once; never raises."""
        with contextlib.suppress(EnvironmentFault):
            await self._tear_down()
        url, self.url = self.url, ""
        if url:
            self.owner.free.put_nowait(url)

    async def _tear_down(self) -> None:
        task, self.task = self.task, None
        if task is not None:
            await self._ask("POST", "/task/tear_down", **task_query(task))

    async def _screen(self) -> Screen:
        path = "/screenshot?wait_to_stabilize=true"
        async with Connection(self.url, self.owner.call_timeout_s) as server:
            rest, image = await asyncio.to_thread(take_rows, await server.send("GET", path), "pixels")
            answer = server.decode(path, rest, dict[str, Any])
        image = image or decode_file(answer.get("pixels"))
        return msgspec.structs.replace(screen_of(image, self.goal, done=False), calls=OFFERED)

    async def _execute(self, body: dict[str, Any]) -> None:
        self._required()
        await self._ask("POST", "/execute_action", body=body)

    async def _ask(self, method: str, path: str, body: Any = None, **query: str) -> dict[str, Any]:
        asked = f"{path}?{urlencode(query)}"
        async with Connection(self.url, self.owner.call_timeout_s) as server:
            answer: dict[str, Any] = server.decode(
                path, await server.send(method, asked, json_body=body), dict[str, Any]
            )
            return answer

    def _required(self) -> Task:
        if self.task is None:
            raise EnvironmentFault("the phone was not reset to a task, or has been given back")
        return self.task


def task_query(task: Task) -> dict[str, str]:
    """Return the server's query for a task."""
    return {"task_type": task.page, "task_idx": str(task.seed)}
