"""A person made of a page's oracle: watches a run, and corrects the first wrong action of failed rollouts.

A rollout is played again in a browser of the person's own. Its first wrong action is the one after which the oracle
still wants the same action, or which ended the episode without success. The correction is what the oracle wanted.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

import msgspec

from console.launch.training_run import TrainingRun
from console.runs import feedback
from dart_streams import actions
from dart_streams.actions import Action
from dart_streams.actions.sequence import parse_written
from dart_streams.clock import now_ms
from dart_streams.config import Config
from dart_streams.config.tasks import Task, TaskSet
from dart_streams.screens import smart_resize
from dart_streams.store import AsyncStore, open_store
from topics.observations import Observation
from topics.outcomes import is_success
from topics.trajectories import Trajectory
from workers.env.backends.miniwob.backend import MiniwobBackend
from workers.env.backends.miniwob.capture import HEIGHT, WIDTH
from workers.env.backends.miniwob.oracle import as_action
from workers.env.backends.miniwob.page import MiniwobPage
from workers.env.environment import rescale

AUTHOR = "oracle"
POLL_INTERVAL_S = 0.5
SCREEN = WIDTH, HEIGHT


class WrongAction(NamedTuple):
    """The first wrong action of a rollout, from 0, and the one that was right."""

    step: int
    right: Action


class OraclePerson:
    """Gives at most ``limit`` corrections on rollouts of ``page``, one each ``every_s`` seconds."""

    def __init__(self, config: Config, tasks: TaskSet, page: str, limit: int, every_s: float) -> None:
        self.config = config
        self.tasks = tasks
        self.page = page
        self.limit = limit
        self.every_s = every_s
        self.image = smart_resize(*SCREEN, config.policy.min_pixels, config.policy.max_pixels)
        self.given = 0
        self.corrected: set[tuple[str, int]] = set()
        self.seen: set[str] = set()

    async def correct(self, run: TrainingRun) -> None:
        """Correct rollouts of a run until the limit."""
        if not self.limit:
            return
        await run.has_topics.wait()
        async with contextlib.AsyncExitStack() as resources:
            store = await open_store(self.config, resources)
            backend = await resources.enter_async_context(own_browser(self.config))
            while self.given < self.limit:
                found = self.newest_failure(run)
                if found is None or not await self.correct_one(found, store, backend):
                    await asyncio.sleep(POLL_INTERVAL_S)
                    continue
                await asyncio.sleep(self.every_s)

    def newest_failure(self, run: TrainingRun) -> Trajectory | None:
        """Return the newest failed rollout that was not looked at."""
        assert run.follower is not None
        every = run.follower.progress.finished.values()
        failed = [one for one in every if self.is_wanted(one)]
        return max(failed, key=lambda one: one.finished_ms, default=None)

    def is_wanted(self, one: Trajectory) -> bool:
        """Return whether a rollout of the page failed and was not looked at."""
        ours = one.purpose == "train" and self.tasks.get(one.task_id).page == self.page
        return ours and one.reward is not None and not is_success(one.reward) and one.trajectory_id not in self.seen

    async def correct_one(self, rollout: Trajectory, store: AsyncStore, backend: MiniwobBackend) -> bool:
        """Correct a rollout; return whether there was something to correct that had not been corrected."""
        self.seen.add(rollout.trajectory_id)
        taken = self.actions_of(await store.steps(rollout.trajectory_id))
        wrong = await first_wrong(backend, self.tasks.get(rollout.task_id), taken)
        if wrong is None or (rollout.task_id, wrong.step) in self.corrected:
            return False
        self.corrected.add((rollout.task_id, wrong.step))
        action = actions.format(rescale(wrong.right, SCREEN, self.image))
        said = feedback.make_correction(rollout, wrong.step, action, AUTHOR, now_ms(), "")
        await feedback.publish(self.config, [said])
        self.given += 1
        return True

    def actions_of(self, steps: Sequence[Observation]) -> list[Action]:
        """Return the actions of a rollout in pixels of the screen; a wait for an answer that is none."""
        texts = [one.taken.action for one in steps if one.taken is not None]
        return [rescale(parse_written(text), self.image, SCREEN) if text else actions.Wait() for text in texts]


@contextlib.asynccontextmanager
async def own_browser(config: Config) -> AsyncIterator[MiniwobBackend]:
    """Yield a backend with one browser and one slot."""
    replace = msgspec.structs.replace
    miniwob = replace(config.env.miniwob, browsers=1, call_timeout_s=60.0)
    backend = MiniwobBackend(replace(config, env=replace(config.env, slots=1, miniwob=miniwob)))
    await backend.start()
    try:
        yield backend
    finally:
        await backend.stop()


async def first_wrong(backend: MiniwobBackend, task: Task, taken: Sequence[Action]) -> WrongAction | None:
    """Play a rollout again, and return its first wrong action; None if each one helped."""
    page = await backend.open(task)
    try:
        await page.reset(task)
        wanted = await next_wanted(page, task)
        for number, action in enumerate(taken):
            if wanted is None:
                return None
            await page.step(action, f"again-{number}")
            after = None if page.done else await next_wanted(page, task)
            if after == wanted or (page.done and not is_success(await page.evaluate())):
                return WrongAction(number, wanted)
            wanted = after
    finally:
        await page.close()
    return None


async def next_wanted(page: MiniwobPage, task: Task) -> Action | None:
    """Return the oracle's next action; None if there is nothing left to do."""
    result = await page.evaluate_script(page.next_script(task))
    return None if result is None else as_action(result)
