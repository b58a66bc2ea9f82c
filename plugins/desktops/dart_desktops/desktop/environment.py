"""One episode on a desktop of the pool."""

from collections.abc import AsyncIterator, Mapping

import msgspec

from dart_desktops.desktop.families import problem_of
from dart_desktops.desktop.inputs import input_events, touch_events
from dart_desktops.desktop.offers import offers_of
from dart_desktops.desktop.pool import DesktopPool
from dart_desktops.desktop.problem import Element, Problem, SessionOutcome, oracle_actions, parse_elements
from dart_desktops.desktop.sandbox import Sandbox
from dart_streams.actions import Action, Call
from dart_streams.config.tasks import Task
from workers.env import metrics
from workers.env.environment import EnvironmentFault, Screen, Size


class DesktopEnvironment:
    """One episode: a desktop of the pool with a session for the task, which decides about its end."""

    def __init__(self, pool: DesktopPool, sandbox: Sandbox, last_screen: bool, prepared: Task | None = None) -> None:
        self.prepared = prepared
        """Task whose session was started ahead, until it is used."""
        self.pool = pool
        self.sandbox = sandbox
        self.last_screen = last_screen
        self.problem: Problem | None = None
        self.size: Size = pool.size
        self.over = False
        self.faulty = False
        self._closed = False

    async def reset(self, task: Task) -> Screen:
        """Start a clean session for the task, unless one was prepared."""
        self.problem = problem_of(task.page, task.seed)
        self.size = self.problem.screen(self.pool.size)
        self.pool.base = self.problem.base(self.pool.size)
        prepared, self.prepared = self.prepared == task, None
        if prepared:
            content, headers = await self._request("GET", "screen")
            if headers["X-Over"] == "0":
                return self._first_screen(content, headers)
        content, headers = await self._request("POST", "session", self.pool.session(self.problem))
        return self._first_screen(content, headers)

    async def step(self, action: Action, action_id: str, last: bool = False) -> Screen:
        """Perform an action, given in screen pixels, and wait until the desktop is at rest."""
        returned = await self._call(action, action_id) if isinstance(action, Call) else ""
        with_image = self.last_screen or not last
        events = touch_events(action) if self._task().phone else input_events(action)
        body = {"id": action_id, "events": events, "image": with_image}
        content, headers = await self._request("POST", "step", body)
        screen = self._screen(content if with_image else None, headers)
        return msgspec.structs.replace(screen, returned=returned) if returned else screen

    async def evaluate(self) -> float:
        """Return 1 if the task is solved, else 0."""
        outcome = await self._outcome()
        elements = await self._elements() if self._task().reads_elements and outcome.exit_code is None else []
        return float(self._task().solved(outcome, elements))

    def demonstrate(self, task: Task) -> AsyncIterator[Action]:
        """Yield the oracle's actions, each from the shown elements; raise EnvironmentFault if one is missing."""

        async def is_over() -> bool:
            return self.over

        return oracle_actions(self._task().oracle, self._elements, is_over, f"{task.task_id}: ")

    async def close(self) -> None:
        """Give the desktop back, once; never raises."""
        if not self._closed:
            self._closed = True
            await self.pool.give_back(self.sandbox, self.faulty)

    async def _call(self, call: Call, action_id: str) -> str:
        body = {"id": action_id, "name": call.name, "arguments": call.arguments}
        content, _ = await self._request("POST", "call", body)
        return str(msgspec.json.decode(content)["returned"])

    def _task(self) -> Problem:
        if self.problem is None:
            raise EnvironmentFault("the desktop was not reset to a task")
        return self.problem

    async def _outcome(self) -> SessionOutcome:
        content, _ = await self._request("GET", "outcome")
        return msgspec.json.decode(content, type=SessionOutcome)

    async def _elements(self) -> list[Element]:
        content, _ = await self._request("GET", "elements")
        return parse_elements(content.decode())

    async def _request(
        self, method: str, endpoint: str, body: Mapping[str, object] | None = None
    ) -> tuple[bytes, Mapping[str, str]]:
        try:
            return await self.sandbox.request(method, endpoint, body)
        except BaseException:
            self.faulty = True  # Its state is unknown: it is not used again.
            raise

    def _first_screen(self, content: bytes, headers: Mapping[str, str]) -> Screen:
        calls = offers_of(self._task()) if self.pool.offers_calls else ()
        return msgspec.structs.replace(self._screen(content, headers), calls=calls)

    def _screen(self, content: bytes | None, headers: Mapping[str, str]) -> Screen:
        self.over = headers["X-Over"] == "1"
        metrics.desktops_restless.add(int(headers["X-At-Rest"] == "0"))
        width, height = self.size
        return Screen(
            image=content,
            media_type="image/png",
            width=width,
            height=height,
            instruction=self._task().instruction,
            done=self.over,
        )
