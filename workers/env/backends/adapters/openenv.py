"""An OpenEnv server: an environment of its own for each connection of the WebSocket ``/ws``, so for each episode.

OpenEnv's observations are its environments' own, so the options say where the screenshot and the instruction are, and
in which form actions are sent. The defaults are those of its BrowserGym environment.
"""

import contextlib
from typing import Any, Literal

import aiohttp
import msgspec

from dart_streams.actions import Action
from dart_streams.config import Config
from dart_streams.config.tasks import Task
from dart_streams.errors import ServiceUnavailable
from workers.env.backends.adapters import action_formats
from workers.env.backends.adapters.settings import (
    clamp_reward,
    convert_options,
    encode_image,
    field_of,
    flag_of,
    number_of,
    text_of,
)
from workers.env.environment import EnvironmentFault, Screen, screen_of

MESSAGE_BYTES = 64 * 2**20
CLOSE_S = 2.0
UNFIT = "VALIDATION_ERROR"
"""The code of an answer to an action that the environment's schema does not have."""


class OpenEnvOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``env.installed.options``."""

    url: str
    """The server: ``http://host:8000``."""
    dialect: Literal["browsergym", "typed"] = "browsergym"
    """Actions as calls of BrowserGym, or as this project's own fields with their ``type``."""
    action_field: str = "action_str"
    """The field of the environment's action that has it; empty: its fields are the action's."""
    screenshot: str = "screenshot"
    """Where the observation has the screen: base64, a data URL or rows of pixels; a path of names with dots."""
    instruction: str = "goal"
    """Where the observation has the instruction."""
    task_field: str = "task_name"
    """The parameter of a reset that names the task's page; empty: none, for the server has one task."""
    reset_timeout_s: float = 120.0


def backend(config: Config) -> "OpenEnvBackend":
    """Return the backend that ``env.backend = "openenv"`` means; raise ConfigError for wrong options."""
    return OpenEnvBackend(convert_options(config, OpenEnvOptions), config.env.selected.call_timeout_s)


class OpenEnvBackend:
    """A server."""

    def __init__(self, settings: OpenEnvOptions, call_timeout_s: float) -> None:
        self.settings = settings
        self.call_timeout_s = call_timeout_s

    async def start(self) -> None:
        """Ask the server whether it is well; raise ServiceUnavailable if it does not say so."""
        url, bound = f"{self.settings.url.rstrip('/')}/health", aiohttp.ClientTimeout(total=self.call_timeout_s)
        try:
            async with aiohttp.ClientSession(timeout=bound) as session, session.get(url) as answer:
                found = str(answer.status)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            found = str(error) or type(error).__name__
        if found != "200":
            raise ServiceUnavailable(f"env.installed.options.url: {url} answers {found}: start OpenEnv's server")

    async def open(self, task: Task) -> "OpenEnvEnvironment":
        """Return an environment that is not connected yet."""
        return OpenEnvEnvironment(self.settings, self.call_timeout_s)

    async def stop(self) -> None:
        """Each episode has a connection of its own."""


class OpenEnvEnvironment:
    """One episode: its connection is its environment, which ends with it."""

    def __init__(self, settings: OpenEnvOptions, call_timeout_s: float) -> None:
        self.settings = settings
        self.call_timeout_s = call_timeout_s
        self.instruction = ""
        self.reward = 0.0
        self.shown: Screen | None = None
        self._session: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._executed: set[str] = set()

    async def reset(self, task: Task) -> Screen:
        """Connect anew, so that nothing of an earlier episode is there, and reset to the task's seed."""
        await self.close()
        self.reward, self.shown = 0.0, None
        self._executed.clear()
        url = f"{self.settings.url.rstrip('/')}/ws"
        self._session = aiohttp.ClientSession()
        try:
            bound = aiohttp.ClientWSTimeout(ws_close=CLOSE_S)
            self._socket = await self._session.ws_connect(url, max_msg_size=MESSAGE_BYTES, timeout=bound)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            await self.close()
            raise EnvironmentFault(f"{url}: {str(error) or type(error).__name__}") from None
        named = {self.settings.task_field: task.page} if self.settings.task_field else {}
        return await self._observed("reset", {"seed": task.seed, **named}, self.settings.reset_timeout_s)

    async def step(self, action: Action, action_id: str, last: bool = False) -> Screen:
        """Execute an action, given in screen pixels, at most once per id; after the end nothing is executed."""
        shown = self._required()
        if action_id in self._executed or shown.done:
            return shown
        self._executed.add(action_id)
        form = action_formats.to_browsergym if self.settings.dialect == "browsergym" else action_formats.to_fields
        wanted: Any = form(action)
        fields = {self.settings.action_field: wanted} if self.settings.action_field else wanted
        return await self._observed("step", fields, self.call_timeout_s)

    async def evaluate(self) -> float:
        """Return the sum of the rewards, within [0, 1]."""
        self._required()
        return clamp_reward(self.reward)

    async def close(self) -> None:
        """Close the connection, and the environment with it; never raises."""
        socket, session, self._socket, self._session = self._socket, self._session, None, None
        if socket is not None:
            with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                await socket.send_json({"type": "close"})
                await socket.close()
        if session is not None:
            await session.close()

    async def _observed(self, kind: str, data: Any, limit_s: float) -> Screen:
        """Send one message once, and return the screen of the observation that answers it."""
        try:
            answer = await self._exchange(kind, data, limit_s)
        except BaseException:
            await self.close()  # Its state is unknown.
            raise
        if answer is not None:
            observation = answer.get("observation") or {}
            self.reward += number_of(answer, "reward")
            if kind == "reset":
                self.instruction = text_of(observation, self.settings.instruction)
            image = encode_image(field_of(observation, self.settings.screenshot))
            self.shown = screen_of(image, self.instruction, flag_of(answer, "done"))
        return self._required()

    async def _exchange(self, kind: str, data: Any, limit_s: float) -> dict[str, Any] | None:
        """Return what a message is answered with, None if the action does not fit the environment's schema."""
        if self._socket is None:
            raise EnvironmentFault("the environment is not connected")
        url = self.settings.url
        try:
            await self._socket.send_json({"type": kind, "data": data})
            answer = await self._socket.receive_json(timeout=limit_s)
        except TimeoutError:
            raise EnvironmentFault(f"{url}: {kind}: no answer within {limit_s:g} s") from None
        except (aiohttp.ClientError, OSError, TypeError, ValueError) as error:
            raise EnvironmentFault(f"{url}: {kind}: the connection has ended: {error}") from None
        found = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(found, dict) or answer.get("type") not in {"observation", "error"}:
            raise EnvironmentFault(f"{url}: {kind} is answered with {str(answer)[:200]}")
        if answer["type"] == "observation":
            return found
        if kind == "step" and found.get("code") == UNFIT:
            return None
        raise EnvironmentFault(f"{url}: {kind}: {found.get('code')}: {found.get('message')}")

    def _required(self) -> Screen:
        if self._socket is None or self.shown is None:
            raise EnvironmentFault("the environment was not reset to a task, or has ended")
        return self.shown
