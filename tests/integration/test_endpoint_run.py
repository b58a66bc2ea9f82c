"""A run evaluates an OpenAI-compatible endpoint, which demonstrates for a later training."""

import asyncio
import io
import json
from typing import Any, NamedTuple

import msgspec
import pytest
from aiohttp import web
from rich.console import Console

from console.runs import run_folder as folder
from console.runs.run_log import read_events
from dart_streams.config import Config
from examples.in_memory_run import InMemoryRun
from tests.command_line import invoke
from tests.integration.test_circle import HERE, circle_config, session_of
from tests.unit.workers.rollout.misbehaving import chat, says, served
from topics import curated, trajectories
from topics.trajectories import Trajectory
from workers.env.backends.simulated import SimulatedBackend
from workers.rollout.scripted import POINT

KEY = "sk-of-the-endpoint-run"

pytestmark = pytest.mark.timeout(600)


class Expert:
    """Solves every task from its instruction; each seventh answer is to wait, each thirteenth request fails."""

    def __init__(self) -> None:
        self.requests = 0

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        if request.headers.get("Authorization") != f"Bearer {KEY}":
            return await says({"error": "no key"}, 401)(request)
        if self.requests % 7 == 0:
            return await says({"error": "slow down"}, 429, Retry_After="0.05")(request)
        if self.requests % 13 == 0:
            return await says({"error": "out of memory"}, 500)(request)
        return await says(chat(answer_to(json.loads(await request.read())["messages"])))(request)


def answer_to(messages: list[dict[str, Any]]) -> str:
    """Return the click that the instruction names for this step."""
    step = sum(message["role"] == "assistant" for message in messages)
    said = next(m for m in messages if m["role"] == "user")["content"][0]["text"]
    points = POINT.findall(said) or [("1", "1")]
    x, y = points[min(step, len(points) - 1)]
    return f"Thought: there.\nAction: click(start_box='({x},{y})')"


async def evaluated_and_demonstrated(base: Config, expert: Expert, shown: io.StringIO) -> folder.RunFolder:
    """Let a run ask the expert, and return its folder."""
    replace = msgspec.structs.replace
    async with served(expert) as server:
        openai = replace(
            base.rollout.openai, base_url=server.url, model="expert", api_key="env:ENDPOINT_KEY", demonstrate=True
        )
        asking = replace(base, rollout=replace(base.rollout, engine="openai", openai=openai))
        made = folder.create(asking, HERE / "circle-tasks.toml", folder.new_id(), resume=False)
        session = session_of(made, Console(file=shown, width=160))
        session.processes = replace(session.processes, trainer=())
        await session.run()
    return made


class Evaluated(NamedTuple):
    """The run that is over, what it showed, and the endpoint that it asked."""

    made: folder.RunFolder
    shown: str
    expert: Expert


@pytest.fixture(scope="module")
def evaluated(services, tmp_path_factory) -> Evaluated:
    base = circle_config(services, tmp_path_factory.mktemp("endpoint"), episodes=16, minutes=0.0)
    shown, expert = io.StringIO(), Expert()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENDPOINT_KEY", KEY)
        made = asyncio.run(evaluated_and_demonstrated(base, expert, shown))
    return Evaluated(made, shown.getvalue(), expert)


@pytest.fixture
def demonstrated(evaluated: Evaluated) -> list[Trajectory]:
    ended = read_events(evaluated.made.config().bus, [trajectories.TOPIC])
    return [trajectory for trajectory in ended if trajectory.purpose == "demonstration"]


def test_a_run_evaluates_an_endpoint_and_keeps_its_key_to_itself(evaluated: Evaluated):
    made, shown = evaluated.made, evaluated.shown
    report = json.loads((made.path / "report.json").read_text())
    assert (report["success_before"], report["success_after"], report["lost"]) == (1.0, None, 0), shown
    assert report["evaluation"]["before"]["episodes"] == 16
    assert evaluated.expert.requests > 30
    state = made.config().run.state_dir
    done = invoke("capture", made.id, "--state", state, "-o", str(made.path / "run.dart"))
    assert done.exit_code == 0, done.output
    holding = [file for file in made.path.rglob("*") if file.is_file() and KEY.encode() in file.read_bytes()]
    assert not holding, "the key is in no configuration, log, report or bundle of the run"


def test_an_endpoint_demonstrates_each_training_task(evaluated: Evaluated, demonstrated: list[Trajectory]):
    wanted = {task.task_id for task in evaluated.made.tasks().train}
    assert {t.task_id for t in demonstrated if t.outcome == "success"} == wanted
    assert all(t.version_min is None and not t.untrainable for t in demonstrated)


def test_demonstrations_of_an_endpoint_fill_the_pool_of_a_later_training(
    evaluated: Evaluated, demonstrated: list[Trajectory]
):
    """The training is in memory: the curator reads the run's records, and then rollouts that all fail."""
    config, tasks = evaluated.made.config(), evaluated.made.tasks()
    run = InMemoryRun(config, tasks, SimulatedBackend(config), lambda _: "Action: click(start_box='(0,0)')")
    for trajectory in demonstrated:
        run.circle.publish(trajectories.TOPIC.name, trajectory.trajectory_id, trajectory)
    played = asyncio.run(run.run(64))
    assert {trajectory.outcome for trajectory in played} == {"failure"}
    groups = [written.event for written in run.circle.logs[curated.TOPIC.name]]
    pooled = {member.trajectory_id for group in groups for member in group.members if member.source == "pool"}
    assert pooled and pooled <= {trajectory.trajectory_id for trajectory in demonstrated}
