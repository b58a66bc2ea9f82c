"""Options, responses and episodes of the adapters."""

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from dart_adapters import action_formats
from dart_phones.gestures import keys_after
from dart_streams.actions import Action, Finished
from dart_streams.config import Config
from dart_streams.errors import ConfigError
from workers.env.environment import EnvironmentFault, Screen, screen_of
from workers.env.returned_values import describe_value

T = TypeVar("T")


def convert_options(config: Config, kind: type[T]) -> T:
    """Return ``env.installed.options`` as a ``kind``; raise ConfigError that names a wrong key."""
    try:
        return msgspec.convert(config.env.installed.options, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"env.installed.options of {config.env.backend}: {error}") from None


class RewardedEpisode:
    """An episode whose reward is the sum of its steps' rewards; after its end nothing is executed."""

    def __init__(self, dialect: str) -> None:
        self.dialect = dialect
        self.reward = 0.0
        self.shown: Screen | None = None
        self._executed: set[str] = set()
        self._held: action_formats.Held = frozenset()

    async def step(self, action: Action, action_id: str, last: bool = False) -> Screen:
        """Execute an action, given in screen pixels, at most once per id."""
        shown = self._current_screen()
        if action_id in self._executed or shown.done:
            return shown
        self._executed.add(action_id)
        return await self._execute(action)

    async def answer(self, text: str) -> None:
        """Give the policy's answer to an environment that has words for it."""
        if self.dialect == "browsergym" and not self._current_screen().done:
            await self._execute(Finished(text))

    async def evaluate(self) -> float:
        """Return the sum of the rewards, clamped to [0, 1]."""
        self._current_screen()
        return clamp_reward(self.reward)

    async def _execute(self, action: Action) -> Screen:
        raise NotImplementedError

    def _convert(self, action: Action) -> Any:
        """Return an action in the environment's dialect, once, as it counts for what is held."""
        held, self._held = self._held, keys_after(action, self._held)
        return action_formats.DIALECTS[self.dialect](action, held)

    def _restart(self) -> None:
        self.reward, self.shown, self._held = 0.0, None, frozenset()
        self._executed.clear()

    def _show(self, image: bytes, instruction: str, answer: Mapping[str, Any]) -> Screen:
        """Add the ``reward`` of an answer, and return its screen, which may be the last (``done``)."""
        self.reward += number_of(answer, "reward")
        self.shown = screen_of(image, instruction, flag_of(answer, "done"))
        return self.shown

    def _current_screen(self) -> Screen:
        if self.shown is None:
            raise EnvironmentFault("the environment was not reset to a task, or has ended")
        return self.shown


def field_of(fields: Mapping[str, Any], path: str) -> Any:
    """Return the value at a dotted path, None if there is none."""
    value: Any = fields
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def read_field(answer: Mapping[str, Any], path: str, what: str, *kinds: type) -> Any:
    """Return the value at a path, None if there is none; raise EnvironmentFault unless it is of these types."""
    value = field_of(answer, path)
    if value is not None and (type(value) not in kinds or (isinstance(value, float) and not math.isfinite(value))):
        raise EnvironmentFault(f"{path} is {describe_value(value)}: it is {what}")
    return value


def number_of(answer: Mapping[str, Any], path: str) -> float:
    """Return the finite number at a path, 0 if there is none."""
    return float(read_field(answer, path, "a number", int, float) or 0)


def flag_of(answer: Mapping[str, Any], path: str) -> bool:
    """Return the boolean at a path, False if there is none."""
    return bool(read_field(answer, path, "true or false", bool))


def text_of(answer: Mapping[str, Any], path: str) -> str:
    """Return the text at a path, empty if there is none."""
    return read_field(answer, path, "a text", str) or ""


def clamp_reward(reward: float) -> float:
    """Clamp a sum of rewards to [0, 1]; raise EnvironmentFault if it is not finite."""
    if not math.isfinite(reward):
        raise EnvironmentFault(f"the rewards of the episode add up to {reward}")
    return min(max(reward, 0.0), 1.0)
