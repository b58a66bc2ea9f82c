"""Screens with a target from MiniWoB++ pages: the first screen of each task whose oracle begins with a click.

``.venv/streams/bin/python -m benchmarks.recipes.gui_actor_screens CONFIG FILE`` writes those of a deployment's
demonstrations and held-out tasks.
"""

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from dart_streams.config import Config, load, tasks
from dart_streams.config.tasks import Task
from workers.env.backends.miniwob.backend import MiniwobBackend
from workers.env.backends.miniwob.capture import HEIGHT, WIDTH
from workers.env.backends.miniwob.page import MiniwobPage

CONCURRENCY = 4
TARGET = f"""((said) => {{
  if (!said || !('x' in said) || 'to_x' in said || 'text' in said) return null;
  const hit = document.elementFromPoint(said.x, said.y);
  const part = hit.closest('button, a, input, textarea, h3') || hit;
  if (['svg', 'canvas'].includes(part.localName)) return null;
  const box = part.getBoundingClientRect();
  return [said.x, said.y, Math.max(box.left, 0), Math.max(box.top, 0),
    Math.min(box.right, {WIDTH}), Math.min(box.bottom, {HEIGHT})];
}})"""
"""Yields the oracle's click, and the visible box of the element that it hits.

Null if it does not click, or clicks into a drawing, whose box says nothing.
"""


class TargetScreen(msgspec.Struct, frozen=True):
    """A screen (PNG) with its instruction; ``click`` is the oracle's and ``box`` its target's, in pixels."""

    task_id: str
    split: Literal["demonstration", "heldout"]
    instruction: str
    image: bytes
    width: int
    height: int
    click: tuple[int, int]
    box: tuple[float, float, float, float]

    @property
    def page(self) -> str:
        """The page of the task."""
        return tasks.page_of(self.task_id)


async def look_at(page: MiniwobPage, task: Task) -> TargetScreen | None:
    """Return a task's example; None if its oracle does not begin with a click."""
    screen = await page.reset(task)
    found = await page.evaluate_script(f"{TARGET}({page.next_script(task)})")
    if found is None or screen.image is None or task.split == "train":
        return None
    x, y, *box = found
    return TargetScreen(
        task_id=task.task_id,
        split=task.split,
        instruction=screen.instruction,
        image=screen.image,
        width=screen.width,
        height=screen.height,
        click=(int(x), int(y)),
        box=(box[0], box[1], box[2], box[3]),
    )


async def collect(config: Config, wanted: Sequence[Task]) -> list[TargetScreen]:
    """Return the examples of tasks, in their order; raise EnvironmentFault if a page can't be opened."""
    backend = MiniwobBackend(config)
    room = asyncio.Semaphore(CONCURRENCY)

    async def visit(task: Task) -> TargetScreen | None:
        async with room:
            page = await backend.open(task)
            try:
                return await look_at(page, task)
            finally:
                await page.close()

    await backend.start()
    try:
        found = await asyncio.gather(*map(visit, wanted))
    finally:
        await backend.stop()
    return [example for example in found if example is not None]


def read(file: Path) -> list[TargetScreen]:
    """Return the examples of a file."""
    return msgspec.msgpack.decode(file.read_bytes(), type=list[TargetScreen])


def main() -> None:
    """Write the examples of a deployment's tasks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("file", type=Path)
    given = parser.parse_args()
    config = load(given.config)
    known = tasks.load(given.config.parent / config.tasks.file)
    examples = asyncio.run(collect(config, [*known.demonstration, *known.heldout]))
    given.file.write_bytes(msgspec.msgpack.encode(examples))
    count = sum(example.split == "demonstration" for example in examples)
    print(f"{count} demonstrations and {len(examples) - count} held-out screens in {given.file}")  # noqa: T201


if __name__ == "__main__":
    main()
