"""An environment of one's own: guess a number that is hidden behind a column of the screen.

Runs in the in-memory circle: no Kafka, no Cassandra, no model. ``.venv/streams/bin/python -m examples.minimal_env``
"""

import asyncio
import io
import random

from PIL import Image

from dart_streams.actions import Action, Click
from dart_streams.config import parse
from dart_streams.config.tasks import Page, Task, TaskSet
from examples.in_memory_run import InMemoryRun
from topics.action_requests import ActionRequest
from workers.env.environment import Screen

COLUMNS, SIDE = 4, 64
Image.new("RGB", (SIDE, SIDE), "white").save(drawn := io.BytesIO(), "PNG")


class GuessTheColumn:
    """A backend and its environment in one: the episode ends when the hidden column is clicked."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def close(self) -> None: ...

    async def open(self, task: Task) -> "GuessTheColumn":
        return GuessTheColumn()

    async def reset(self, task: Task) -> Screen:
        self.hidden, self.found = task.seed % COLUMNS, False
        return self.screen()

    async def step(self, action: Action, action_id: str, last: bool = False) -> Screen:
        self.found = isinstance(action, Click) and action.x * COLUMNS // SIDE == self.hidden
        return self.screen()

    async def evaluate(self) -> float:
        return float(self.found)

    def screen(self) -> Screen:
        image = drawn.getvalue()
        return Screen(
            image=image, media_type="image/png", width=SIDE, height=SIDE, instruction="Click", done=self.found
        )


def choose_action(request: ActionRequest) -> str:
    """Click anywhere; a model would look at ``request.turns``."""
    return f"Action: click(start_box='({random.randrange(SIDE)},32)')"


def main() -> None:
    """Play 200 rollouts, and print what the data manager made of them."""
    page = Page(environment="guess", page="column", max_steps=3, train_seeds=(0, 8), heldout_seeds=(100, 101))
    run = InMemoryRun(parse({"policy": {"min_pixels": 784}}), TaskSet([page]), GuessTheColumn(), choose_action)
    finished = asyncio.run(run.run(200))
    successes = sum(trajectory.outcome == "success" for trajectory in finished)
    print(
        f"{successes} of {len(finished)} rollouts succeeded; {len(run.circle.logs['curated'])} groups were curated, "
        f"{run.trainer.version} optimizer steps would have been made"
    )


if __name__ == "__main__":
    main()
