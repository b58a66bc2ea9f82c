"""One episode on a phone of the pool."""

import base64
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec

from dart_desktops.desktop.problem import Element, oracle_actions
from dart_phones.families import PhoneProblem, problem_of
from dart_phones.gestures import input_events, keys_after, meta_state
from dart_phones.offers import OFFERED
from dart_phones.pool import PhonePool
from dart_phones.process import PhoneProcess
from dart_streams.actions import Action, Call
from dart_streams.config import Phone
from dart_streams.config.tasks import Task
from workers.env.environment import EnvironmentFault, Screen


class PhoneEnvironment:
    """One episode: a phone with the state that its task begins with."""

    def __init__(self, pool: PhonePool, phone: PhoneProcess, settings: Phone) -> None:
        self.pool = pool
        self.phone = phone
        self.settings = settings
        self.problem: PhoneProblem | None = None
        self.held: frozenset[str] = frozenset()
        """Held modifiers of the keyboard."""
        self.executed = ""
        self.faulty = False
        self._closed = False

    async def reset(self, task: Task) -> Screen:
        """Reset Android, and start the task."""
        if self.problem is not None:
            await self._send("end")
        self.problem, self.held, self.executed = problem_of(task.page, task.seed), frozenset(), ""
        start = {"qualifiers": self.settings.qualifiers, "app": self.problem.app, "state": self.problem.start}
        screen = self._screen(await self._request("start", **start))
        await self.phone.remove_ended()
        return msgspec.structs.replace(screen, calls=OFFERED) if self.settings.calls else screen

    async def step(self, action: Action, action_id: str, last: bool = False) -> Screen:
        """Perform an action, given in screen pixels, at most once per id."""
        events, held = [], meta_state(self.held)
        if action_id != self.executed:
            self.executed = action_id
            events, self.held = input_events(action, self.held), keys_after(action, self.held)
        image = self.settings.last_screen or not last
        answer = await self._request("step", events=events, held=held, image=image)
        screen = self._screen(answer)
        return msgspec.structs.replace(screen, returned="done") if isinstance(action, Call) else screen

    async def evaluate(self) -> float:
        """Return 1 if the applications have the task's state, else 0."""
        answer = await self._request("state")
        return float(answer["state"] == self._task().goal)

    def demonstrate(self, task: Task) -> AsyncIterator[Action]:
        """Yield the oracle's actions, each from the shown views, until the task is solved.

        Raises EnvironmentFault if a view is missing.
        """

        async def is_solved() -> bool:
            return bool(await self.evaluate())

        return oracle_actions(self._task().oracle, self._elements, is_solved, f"{task.task_id}: ")

    async def close(self) -> None:
        """Give the phone back, once; never raises."""
        if not self._closed:
            self._closed = True
            await self.pool.give_back(self.phone, self.faulty, used=self.problem is not None)

    async def _elements(self) -> list[Element]:
        answer = await self._request("elements")
        return msgspec.convert(answer["elements"], list[Element])

    def _task(self) -> PhoneProblem:
        if self.problem is None:
            raise EnvironmentFault("the phone was not reset to a task")
        return self.problem

    def _size(self) -> tuple[int, int]:
        return self.settings.width, self.settings.height

    async def _send(self, name: str, **arguments: Any) -> None:
        try:
            await self.phone.send(name, **arguments)
        except BaseException:
            self.faulty = True
            raise

    async def _request(self, name: str, **arguments: Any) -> Mapping[str, Any]:
        try:
            return await self.phone.request(name, **arguments)
        except BaseException:
            self.faulty = True  # An answer may still come: it is not used again.
            raise

    def _screen(self, answer: Mapping[str, Any]) -> Screen:
        width, height = self._size()
        image = base64.b64decode(answer["image"]) if "image" in answer else None
        return Screen(
            image=image, media_type="image/png", width=width, height=height, instruction=self._task().instruction
        )
