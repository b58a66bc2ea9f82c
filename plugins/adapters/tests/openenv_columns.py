"""An OpenEnv environment and its server, of the real package: ``openenv_columns.py PORT``, in ``.venv/openenv``.

A screen of four columns, one of which is hidden behind the instruction; a click on it solves the task.
"""

import re
import sys

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app

COLUMNS, SIDE = 4, 64
CLICK = re.compile(r"mouse_click\((\d+), (\d+), 'left'\)")


class ColumnsAction(Action):
    action_str: str


class ColumnsObservation(Observation):
    screenshot: list[list[list[int]]]
    goal: str


class ColumnsEnvironment(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.clicked, self.steps = 0, -1, 0

    def reset(self, seed=None, episode_id=None, **options) -> ColumnsObservation:
        if options.get("task_name") != "columns":
            raise ValueError(f"no task {options}")
        self.hidden, self.clicked, self.steps = (seed or 0) % COLUMNS, -1, 0
        return self.observe(0.0)

    def step(self, action: ColumnsAction, timeout_s=None, **options) -> ColumnsObservation:
        self.steps += 1
        if "die" in action.action_str:
            raise RuntimeError("the environment broke")
        if found := CLICK.fullmatch(action.action_str):
            self.clicked = int(found[1]) * COLUMNS // SIDE
        return self.observe(float(self.clicked == self.hidden))

    def observe(self, reward: float) -> ColumnsObservation:
        pixels = [[[0, 0, 0] for _ in range(SIDE)] for _ in range(SIDE)]
        pixels[1][1] = [self.clicked + 1, 0, 0]
        return ColumnsObservation(
            screenshot=pixels, goal=f"Click column {self.hidden}.", reward=reward, done=self.clicked >= 0
        )

    @property
    def state(self) -> State:
        return State(step_count=self.steps)


app = create_fastapi_app(ColumnsEnvironment, ColumnsAction, ColumnsObservation, max_concurrent_envs=8)

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
