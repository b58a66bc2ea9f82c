"""The pages of long episodes: they keep the rules, have 8 to 20 actions, and are recorded as they are played."""

import asyncio
from pathlib import Path

import pytest

from benchmarks.learning import recording, variants
from benchmarks.learning.episodes import play_demonstration, single_order
from benchmarks.learning.screens import START
from dart_streams.config import Config, load, tasks
from dart_streams.config.tasks import Page, TaskSet
from dart_streams.episodes.trajectory_summary import summarize
from tests.environments import playing
from tests.integration.test_learning_screens import one, patient
from topics.values import Sampling
from workers.env import conformance
from workers.env.backends.miniwob.backend import MiniwobBackend

FILE = Path(__file__).parents[2] / "deploy/config/long.toml"
TASKS: TaskSet = tasks.load(FILE.parent / "long-tasks.toml")
SEEDS = 4


@pytest.fixture(scope="module")
def config() -> Config:
    return patient(load(FILE))


@pytest.fixture
async def backend(config: Config):
    backend = MiniwobBackend(config)
    await backend.start()
    yield backend
    await backend.stop()


@pytest.mark.parametrize("page", TASKS.pages, ids=lambda page: page.page)
async def test_a_page_keeps_the_rules_and_has_8_to_20_actions(backend: MiniwobBackend, page: Page):
    await conformance.check(backend, page.tasks("train")[0])
    for task in page.tasks("heldout")[:SEEDS]:
        async with playing(backend, task) as played:
            count = 0
            async for action in played.demonstrate(task):
                await played.step(action, str(count))
                count += 1
            assert 8 <= count <= task.max_steps <= 20
            assert await played.evaluate() == 1.0


async def test_a_wrong_click_changes_nothing(backend: MiniwobBackend):
    for page in TASKS.pages:
        task = page.tasks("train")[0]
        async with playing(backend, task) as played:
            await played.evaluate_script("[...area.children].find((one) => one !== task.demonstrate()).click()")
            assert await played.evaluate_script("String(task.state())") in ("0", "0 false")


def test_a_recorded_page_is_a_chain_of_named_states(config: Config):
    base = patient(variants.read(Path("benchmarks/learning/long.toml"))["base"])
    chosen = [page.tasks(split)[0] for page in TASKS.pages for split in ("train", "demonstration")]
    recorded = asyncio.run(recording.record(base, chosen, lambda _done, _of: None))
    for task in chosen:
        states = recorded.problems[task.task_id].states
        shown = summarize(
            play_demonstration(recorded, base.policy, single_order(task, "demonstration", 0, Sampling()), 20)
        )
        assert shown.outcome == "success"
        assert shown.steps == len(states) >= 8, "each wrong click leads back to its state"

    async def play_both() -> None:
        backend = MiniwobBackend(config)
        await backend.start()
        try:
            for task in chosen[::2]:
                assert START in recorded.problems[task.task_id].states
                await one(backend, recorded, task, 0)
        finally:
            await backend.stop()

    asyncio.run(play_both())
