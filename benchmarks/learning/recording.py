"""Recorder of problems from real pages with the env worker's browser: ``dart-streams bench learning``.

It visits every state that clicks on parts can reach within a task's step limit, and clicks every part there; for
demonstration tasks only what the oracle clicks. Effects of clicks beside all parts (focus rings) are not recorded.

States are paths of clicks, which are too many for a long episode. Its page therefore has ``task.state()``, a text that
determines all that follows: equal texts are one state.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from benchmarks.learning.screens import (
    CELL,
    START,
    ClickResult,
    RecordedProblem,
    RecordedState,
    Recording,
    path_of,
)
from dart_streams.actions import Action, Click, Wait
from dart_streams.config import Config
from dart_streams.config.tasks import Task, TaskSet
from dart_streams.errors import UserError
from dart_streams.store.blobs import ref_of
from workers.env.backends.miniwob.backend import MiniwobBackend
from workers.env.backends.miniwob.capture import HEIGHT, WIDTH
from workers.env.backends.miniwob.page import MiniwobPage
from workers.env.environment import EnvironmentFault

CLICKABLE = "#area button, #area a, #area input, #area h3, .ui-dialog button"
"""Elements that are parts, in document order; other clicks have no effect on these pages."""
CONCURRENCY = 6
"""Problems recorded concurrently; with more pages a browser on two cores misses deadlines."""
ATTEMPTS = 3
"""Attempts per problem, as a busy machine may miss browser deadlines."""

PARTS = f"""(() => {{
  const parts = Array.from(document.querySelectorAll({CLICKABLE!r}));
  const at = [];
  for (let y = 0; y < {HEIGHT}; y += {CELL}) for (let x = 0; x < {WIDTH}; x += {CELL}) {{
    const hit = document.elementFromPoint(x, y);
    at.push(hit ? 1 + parts.findIndex((part) => part.contains(hit)) : 0);
  }}
  return at;
}})()"""
NAME = "typeof task === 'object' && task && typeof task.state === 'function' ? String(task.state()) : null"
"""Yields the name of the page's state; null if the page names none."""
CHANGING = """((places) => places.findIndex(([x, y]) => {
  const before = String(task.state());
  document.elementFromPoint(x, y).click();
  return String(task.state()) !== before || task.evaluate() !== null;
}))"""
"""Yields the index of the first place of which a click changes the page's state or ends it; -1 if none does."""


class ProblemRecorder:
    """Records one task's problem on a page that it resets as needed."""

    def __init__(self, page: MiniwobPage, task: Task, images: dict[str, bytes], layouts: dict[str, bytes]) -> None:
        self.layouts = layouts
        self.page = page
        self.task = task
        self.images = images
        self.states: dict[str, RecordedState] = {}
        self.paths: dict[str, tuple[Click, ...]] = {START: ()}
        self.at: str | None = None
        """State of the page; None if a reset is due."""
        self.first_name: str | None = None
        self.instruction = self.executed = ""
        self.actions = 0

    async def record(self) -> RecordedProblem:
        """Visit all states from the reset on."""
        waiting = [START]
        while waiting:
            state = waiting.pop(0)
            seen = await self.visit(state)
            parts = self.clicked(seen)
            clicks = await self.unchanging(state, seen, parts[:-1])
            for part in parts[len(clicks) :]:
                await self.go(state)
                result = clicks[part] = await self.click(seen, part)
                after = path_of(state, part) if result.state is None else result.state
                path = (*self.paths[state], click_on(seen, part))
                if not result.done and after not in self.paths and len(path) < self.task.max_steps:
                    self.paths[after] = path
                    waiting.append(after)
            self.states[state] = RecordedState(seen.screen, seen.parts, clicks, seen.oracle)
        return RecordedProblem(self.instruction, self.states)

    def clicked(self, seen: RecordedState) -> list[int]:
        """Return the parts to click in a state, the oracle's last, since it leads to a state to visit."""
        right = seen.part_at(*seen.oracle) if seen.oracle else 0
        others = set(seen.parts) - {0, right} if self.task.split != "demonstration" else ()
        return [*sorted(others), *([right] if right else [])]

    async def visit(self, state: str) -> RecordedState:
        """Go to a state; return its screen and parts, without clicks."""
        await self.go(state)
        screen = await self.page.step(Wait(), self.executed)  # executes nothing again
        image = screen.image
        assert image is not None
        ref = ref_of(image, screen.media_type, screen.width, screen.height)
        self.images[ref.sha256] = image
        parts = await self.parts()
        oracle = await self.page.evaluate_script(self.page.next_script(self.task))
        return RecordedState(ref, parts, {}, (oracle["x"], oracle["y"]) if oracle and "x" in oracle else None)

    async def parts(self) -> bytes:
        """Return the parts of the page; those of a page with named states follow from its elements."""
        if self.first_name is None:
            return bytes(await self.page.evaluate_script(PARTS))
        elements = f"{self.task.page} {await self.page.evaluate_script('document.body.innerHTML')}"
        if elements not in self.layouts:
            self.layouts[elements] = bytes(await self.page.evaluate_script(PARTS))
        return self.layouts[elements]

    async def unchanging(self, state: str, seen: RecordedState, parts: Sequence[int]) -> dict[int, ClickResult]:
        """Return the results of the first parts whose clicks change nothing, by one script if states are named."""
        if self.first_name is None or not parts:
            return {}
        clicks = [click_on(seen, part) for part in parts]
        found = int(await self.page.evaluate_script(f"{CHANGING}({[[click.x, click.y] for click in clicks]})"))
        if found >= 0:
            self.at = None
        return dict.fromkeys(parts[:found] if found >= 0 else parts, ClickResult(False, 0.0, state))

    async def click(self, seen: RecordedState, part: int) -> ClickResult:
        """Return the result of a click on a part in the page's state."""
        await self.act(click_on(seen, part), last=True)
        self.at = None if self.page.done else await self.name()
        return ClickResult(self.page.done, await self.page.evaluate() if self.page.done else 0.0, self.at)

    async def go(self, state: str) -> None:
        """Reset and click what leads to a state, unless the page is in it."""
        if self.at != state:
            self.instruction = (await self.page.reset(self.task)).instruction
            self.executed = ""
            self.first_name = await self.page.evaluate_script(NAME)
            for click in self.paths[state]:
                await self.act(click, last=self.first_name is not None)
            self.at = state

    async def name(self) -> str | None:
        """Return the name of the page's state, :data:`START` for the first; None if the page names none."""
        found: str | None = await self.page.evaluate_script(NAME)
        return START if found is not None and found == self.first_name else found

    async def act(self, action: Action, last: bool) -> None:
        """Execute an action; the ``last`` one, or one on a page that names its states, needs no screen."""
        self.actions += 1
        self.executed = str(self.actions)
        await self.page.step(action, self.executed, last)


def click_on(seen: RecordedState, part: int) -> Click:
    """Return a click on a part: the oracle's point, or the middle one of its cells."""
    if seen.oracle is not None and seen.part_at(*seen.oracle) == part:
        return Click(*seen.oracle)
    cells = [index for index, value in enumerate(seen.parts) if value == part]
    row, column = divmod(cells[len(cells) // 2], seen.screen.width // CELL)
    return Click(column * CELL, row * CELL)


async def record(config: Config, tasks: Sequence[Task], report: Callable[[int, int], None]) -> Recording:
    """Record the problems of tasks in a new browser; raise UserError after ``ATTEMPTS`` faults of one."""
    problems: dict[str, RecordedProblem] = {}
    images: dict[str, bytes] = {}
    layouts: dict[str, bytes] = {}
    faults: Counter[str] = Counter()
    backend = MiniwobBackend(config)
    waiting = list(reversed(tasks))

    async def work() -> None:
        while waiting:
            task = waiting.pop()
            page = await backend.open(task)
            try:
                problems[task.task_id] = await ProblemRecorder(page, task, images, layouts).record()
            except EnvironmentFault as fault:
                faults[task.task_id] += 1
                if faults[task.task_id] == ATTEMPTS:
                    raise UserError(f"{task.task_id} can't be recorded, in {ATTEMPTS} attempts: {fault}") from None
                waiting.append(task)
            finally:
                await page.close()
            report(len(problems), len(tasks))

    await backend.start()
    try:
        async with asyncio.TaskGroup() as workers:
            for _ in range(CONCURRENCY):
                workers.create_task(work())
    except* UserError as refused:
        raise refused.exceptions[0] from None
    finally:
        await backend.stop()
    return Recording(problems, images)


def tasks_to_record(tasks: TaskSet) -> list[Task]:
    """Return the tasks to record, page by page, so that neighbors share documents."""
    return [
        task for page in tasks.pages for split in ("train", "heldout", "demonstration") for task in page.tasks(split)
    ]
