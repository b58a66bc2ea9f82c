"""The interface of environment backends, and coordinates on their screens.

A process serves many slots; an environment belongs to one episode.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

import msgspec

from dart_streams import pictures
from dart_streams.actions import Action, Call, Unparsable
from dart_streams.actions.offered import check_call
from dart_streams.config.tasks import Task
from topics.values import OfferedCall

Size = tuple[int, int]
"""Width and height in pixels."""
AXES = {"x": 0, "to_x": 0, "y": 1, "to_y": 1}


class EnvironmentFault(Exception):
    """The environment failed (crash, time-out, lost page); the episode ends as ``env_error``, never with reward 0."""


class NoOracle(EnvironmentFault):
    """The task has no oracle, so it cannot be demonstrated."""


class Screen(msgspec.Struct, frozen=True, kw_only=True):
    """An encoded image of ``width`` x ``height`` pixels, and the task as text.

    With ``done`` the environment has ended the episode and accepts no further action. ``image`` may be None after the
    last action if the backend's ``last_screen`` is false.

    The first screen lists the functions that the policy may call (:func:`dart_streams.actions.offered.offer_call`). The
    screen after a call has the text that it ``returned``, which is also the place of a function's own error.
    """

    image: bytes | None
    media_type: str
    width: int
    height: int
    instruction: str
    done: bool = False
    calls: tuple[OfferedCall, ...] = ()
    returned: str = ""


class Environment(Protocol):
    """One episode's environment. The backend bounds each call in time; a failure raises :class:`EnvironmentFault`.

    Any other exception, an invalid screen or reward, and ignored cancellation also end the episode as ``env_error``
    (:mod:`workers.env.fault_boundary`).
    """

    async def reset(self, task: Task) -> Screen:
        """Start the task without any state of an earlier episode, and return its first screen."""

    async def step(self, action: Action, action_id: str, last: bool = False) -> Screen:
        """Execute an action given in screen pixels, at most once per ``action_id``, and return the screen after it.

        A :class:`~dart_streams.actions.Call` names an offered function and has arguments that fit its schema. With
        ``last`` the episode ends here, whether or not the environment ends it.
        """

    async def evaluate(self) -> float:
        """Return the reward of the present state, in [0, 1]."""

    async def close(self) -> None:
        """Free what the episode holds; never raises."""
        return


class Oracle(Protocol):
    """A backend that can demonstrate a task."""

    def demonstrate(self, task: Task) -> AsyncIterator[Action]:
        """Yield the actions, in screen pixels, that solve the task; each is computed from the page as it then is."""


class Refuser(Protocol):
    """An environment with tasks that may be infeasible; the right answer is to say so."""

    async def give_up(self) -> float:
        """Return the reward, in [0, 1], of an episode that the policy ends by ``call_user``."""


class Answerer(Protocol):
    """An environment with tasks that ask for an answer in words."""

    async def answer(self, text: str) -> None:
        """Take the text with which the policy has ended the episode; the evaluation follows."""


class ProbeEnvironment(Environment, Protocol):
    """An environment of a backend's probe, a task that is its attribute ``probe``, for the contract of actions.

    Its page or program fills the screen and notes the input that reaches it.
    """

    async def received(self) -> list[list[Any]]:
        """Return the inputs since the last call, oldest first, in the words of :mod:`dart_streams.actions.contract`."""

    async def leave(self) -> None:
        """Write everything that a page or program can: files, storage, a clipboard, settings."""

    async def left(self) -> list[str]:
        """Return the places where something of that is found."""


class Preparer(Protocol):
    """A backend that can prepare an environment ahead of its episode."""

    @property
    def ahead(self) -> int:
        """Number of tasks that are useful to know ahead of their episodes."""

    def expect(self, task: Task) -> None:
        """Prepare for a future episode of ``task``; never waits, and never raises."""


class EnvironmentBackend(Protocol):
    """A process-wide factory of environments (a browser, a pool of machines)."""

    async def start(self) -> None:
        """Start; raise :class:`~dart_streams.errors.ServiceUnavailable` with advice if that is impossible."""
        return

    async def open(self, task: Task) -> Environment:
        """Return an environment for one episode of ``task``, which is then reset to it."""

    async def stop(self) -> None:
        """Free everything."""
        return


def require_offered(action: Action, offered: Sequence[OfferedCall]) -> None:
    """Raise EnvironmentFault for a call that does not fit, as a recorded one may be after a change of the settings."""
    if isinstance(action, Call):
        try:
            check_call(action, offered)
        except Unparsable as error:
            raise EnvironmentFault(str(error)) from None


def screen_of(image: bytes, instruction: str, done: bool) -> Screen:
    """Return a screen of an encoded image; raise EnvironmentFault if the image cannot be read."""
    try:
        kind, width, height = pictures.facts_of(image)
    except pictures.UnusablePicture as error:
        raise EnvironmentFault(f"the screen is no screenshot: {error}") from None
    return Screen(image=image, media_type=kind, width=width, height=height, instruction=instruction, done=done)


def rescale(action: Action, source: Size, target: Size) -> Action:
    """Convert ``action`` from pixels of an image of size ``source`` to pixels of one of size ``target``.

    Pixel centers keep their relative position; coordinates outside the source are clamped to the target's edge.
    """
    moved = {
        field: rescale_coordinate(getattr(action, field), source[axis], target[axis])
        for field, axis in AXES.items()
        if hasattr(action, field)
    }
    return msgspec.structs.replace(action, **moved) if moved else action


def rescale_coordinate(value: int, source: int, target: int) -> int:
    """Convert a coordinate from an axis of ``source`` pixels to one of ``target`` pixels."""
    return min(max((2 * value + 1) * target // (2 * source), 0), target - 1)
