"""An OpenEnv server, which has an environment for each connection of the WebSocket ``/ws``, so for each episode.

Options define the fields of screenshot and instruction in observations, which depend on the environment, and the form
of actions. The defaults are those of its BrowserGym environment.
"""

import asyncio
import contextlib
from typing import Any, Literal

import aiohttp
import msgspec

from dart_adapters import action_formats
from dart_adapters.screenshots import decode_answer, decode_file
from dart_adapters.settings import RewardedEpisode, convert_options, field_of, text_of
from dart_streams.actions import Action
from dart_streams.config import Config
from dart_streams.config.tasks import Task
from dart_streams.config.text import MALFORMED
from dart_streams.errors import ServiceUnavailable
from workers.env.backends.connection import Connection
from workers.env.environment import EnvironmentBackend, EnvironmentFault, Screen

MESSAGE_BYTES = 64 * 2**20
CLOSE_S = 2.0
UNFIT = "VALIDATION_ERROR"
"""Error code for an action that does not match the environment's schema."""


class OpenEnvOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``env.installed.options``."""

    url: str
    """URL of the server: ``http://host:8000``."""
    dialect: Literal["browsergym", "typed"] = "browsergym"
    """Actions as calls of BrowserGym, or as this project's fields with their ``type``."""
    action_field: str = "action_str"
    """Field for the action in the environment's action; empty: its fields are the action's."""
    screenshot: str = "screenshot"
    """Dotted path of the screen in the observation: base64, a data URL or rows of pixels."""
    instruction: str = "goal"
    """Dotted path of the instruction in the observation."""
    task_field: str = "task_name"
    """Parameter of a reset for the task's page; empty: none, the server has one task."""
    reset_timeout_s: float = 120.0


def backend(config: Config) -> "OpenEnvBackend":
    """Return the backend ``openenv``; raise ConfigError for wrong options."""
    return OpenEnvBackend(convert_options(config, OpenEnvOptions), config.env.selected.call_timeout_s)


class OpenEnvBackend(EnvironmentBackend):
    """The backend of one OpenEnv server."""

    def __init__(self, settings: OpenEnvOptions, call_timeout_s: float) -> None:
        self.settings = settings
        self.call_timeout_s = call_timeout_s

    async def start(self) -> None:
        """Check the server's health; raise ServiceUnavailable if it fails."""
        try:
            async with Connection(self.settings.url, self.call_timeout_s) as server:
                await server.send("GET", "/health")
        except EnvironmentFault as fault:
            raise ServiceUnavailable(f"env.installed.options.url: {fault}: start OpenEnv's server") from None

    async def open(self, task: Task) -> "OpenEnvEnvironment":
        """Return an environment that is not connected yet."""
        return OpenEnvEnvironment(self.settings, self.call_timeout_s)


class OpenEnvEnvironment(RewardedEpisode):
    """One episode; its environment ends with its connection."""

    def __init__(self, settings: OpenEnvOptions, call_timeout_s: float) -> None:
        super().__init__(settings.dialect)
        self.settings = settings
        self.call_timeout_s = call_timeout_s
        self.instruction = ""
        self._session: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None

    async def reset(self, task: Task) -> Screen:
        """Open a new connection, which has a new environment, and reset it to the task's seed."""
        await self.close()
        self._restart()
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

    async def _execute(self, action: Action) -> Screen:
        converted = self._convert(action)
        if isinstance(converted, str):
            converted = action_formats.to_coord(converted)
        fields = {self.settings.action_field: converted} if self.settings.action_field else converted
        return await self._observed("step", fields, self.call_timeout_s)

    async def close(self) -> None:
        """Close the connection and thereby the environment; never raises."""
        socket, session, self._socket, self._session = self._socket, self._session, None, None
        self.shown = None
        if socket is not None:
            with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                await socket.send_json({"type": "close"})
                await socket.close()
        if session is not None:
            await session.close()

    async def _observed(self, kind: str, data: Any, limit_s: float) -> Screen:
        """Send a message once, and return the screen of the resulting observation."""
        try:
            answer, image = await self._exchange(kind, data, limit_s)
        except BaseException:
            await self.close()  # Its state is unknown.
            raise
        if answer is not None:
            observation = answer.get("observation") or {}
            if kind == "reset":
                self.instruction = text_of(observation, self.settings.instruction)
            image = image or decode_file(field_of(observation, self.settings.screenshot))
            self._show(image, self.instruction, answer)
        return self._current_screen()

    async def _exchange(self, kind: str, data: Any, limit_s: float) -> tuple[dict[str, Any] | None, bytes | None]:
        """Return the data of the response, None if the action does not match the environment's schema.

        The second value is the PNG file of the screenshot, if that came as rows of pixels.
        """
        if self._socket is None:
            raise EnvironmentFault("the environment is not connected")
        url = self.settings.url
        try:
            await self._socket.send_json({"type": kind, "data": data})
            text = await self._socket.receive_str(timeout=limit_s)
        except TimeoutError:
            raise EnvironmentFault(f"{url}: {kind}: no answer within {limit_s:g} s") from None
        except (aiohttp.ClientError, OSError, TypeError, ValueError) as error:
            raise EnvironmentFault(f"{url}: {kind}: the connection has ended: {error}") from None
        try:
            field = self.settings.screenshot.rpartition(".")[2]
            answer, image = await asyncio.to_thread(decode_answer, text.encode(errors="surrogatepass"), field)
        except (ValueError, *MALFORMED) as error:
            raise EnvironmentFault(f"{url}: {kind}: the answer can't be read: {error}") from None
        content = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(content, dict) or answer.get("type") not in {"observation", "error"}:
            raise EnvironmentFault(f"{url}: {kind} is answered with {str(answer)[:200]}")
        if answer["type"] == "observation":
            return content, image
        if kind == "step" and content.get("code") == UNFIT:
            return None, None
        raise EnvironmentFault(f"{url}: {kind}: {content.get('code')}: {content.get('message')}")
