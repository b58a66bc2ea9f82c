"""The same clicks have the same effect on recorded screens and on the pages."""

import asyncio
import random
from pathlib import Path

import msgspec
import pytest

from benchmarks.learning import recording, variants
from benchmarks.learning.screens import CELL, START, Recording
from dart_streams.actions import Click
from dart_streams.config import Config, tasks
from dart_streams.config.tasks import Task
from dart_streams.store.blobs import ref_of
from workers.env.backends.miniwob.backend import MiniwobBackend

EPISODES = 6


@pytest.fixture(scope="module")
def config() -> Config:
    return patient(variants.read()["base"])


def patient(config: Config) -> Config:
    """Return a configuration whose pages may take long."""
    miniwob = msgspec.structs.replace(config.env.miniwob, call_timeout_s=60.0)
    return msgspec.structs.replace(config, env=msgspec.structs.replace(config.env, miniwob=miniwob))


def test_clicks_anywhere_do_on_the_pages_what_was_recorded(config):
    pages = tasks.load(Path(config.tasks.file)).pages
    chosen = [task for page in pages for task in (*page.tasks("train")[:1], *page.tasks("demonstration")[:1])]
    progress: list[int] = []
    recorded = asyncio.run(recording.record(config, chosen, lambda done, _of: progress.append(done)))
    assert recorded.problems.keys() == {task.task_id for task in chosen}
    assert max(progress) == len(chosen)
    outcomes = asyncio.run(played(config, recorded, [task for task in chosen if task.split == "train"]))
    assert {True, False} == {success for success, _ in outcomes}, "some succeed, some do not"
    assert max(steps for _, steps in outcomes) > 2, "also of episodes that go on"


async def played(config: Config, recorded: Recording, chosen: list[Task]) -> list[tuple[bool, int]]:
    """Play clicks on parts, beside them and where the oracle clicks; return success and steps of each episode."""
    backend = MiniwobBackend(config)
    await backend.start()
    try:
        return [await one(backend, recorded, task, number) for task in chosen for number in range(EPISODES)]
    finally:
        await backend.stop()


async def one(backend: MiniwobBackend, recorded: Recording, task: Task, number: int) -> tuple[bool, int]:
    rng = random.Random(f"{task.task_id} {number}")
    problem, at, missed = recorded.problems[task.task_id], START, False
    page = await backend.open(task)
    try:
        screen = await page.reset(task)
        assert screen.instruction == problem.instruction
        for step in range(task.max_steps):
            state = problem.states[at]
            if not missed:  # a click beside all parts may take a focus ring away, which is not recorded
                assert screen.image is not None
                assert ref_of(screen.image, screen.media_type, screen.width, screen.height) == state.screen
            click = drawn(rng, state.parts, state.screen.width, state.oracle)
            missed = missed or state.part_at(click.x, click.y) == 0
            landing = recorded.act(task.task_id, at, click)
            screen = await page.step(click, str(step), step + 1 == task.max_steps)
            place = f"{task.task_id}, episode {number}, state {at!r}, {click}"
            assert page.done == landing.done, place
            assert (await page.evaluate() if page.done else 0.0) == landing.reward, place
            if page.done or landing.state is None:
                break
            at = landing.state
        return landing.reward == 1.0, step + 1
    finally:
        await page.close()


def drawn(rng: random.Random, parts: bytes, width: int, oracle: tuple[int, int] | None) -> Click:
    """Return the oracle's click, one on any cell of a part, or one anywhere."""
    kind = rng.random()
    if kind < 0.4 and oracle is not None:
        return Click(*oracle)
    cells = [cell for cell, part in enumerate(parts) if part or kind > 0.8]
    row, column = divmod(rng.choice(cells), width // CELL)
    return Click(column * CELL, row * CELL)
