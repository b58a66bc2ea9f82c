"""A run evaluates an OpenAI-compatible endpoint, which demonstrates for a later training."""

import asyncio
import io
import json
from typing import Any

import msgspec
import pytest
from aiohttp import web
from rich.console import Console

from dart_streams.config import Config
from dart_streams.console.runs import run_folder as folder
from dart_streams.console.runs.run_log import read_events, read_log
from dart_streams.console.runs.run_state import RunState
from tests.command_line import invoke
from tests.integration.test_circle import HERE, MINUTES, circle_config, session_of
from tests.unit.workers.rollout.misbehaving import chat, says, served
from topics import curated, trajectories
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


def test_demonstrations_of_an_endpoint_fill_the_pool_of_a_later_training(services, tmp_path, monkeypatch):
    monkeypatch.setenv("ENDPOINT_KEY", KEY)
    replace = msgspec.structs.replace
    base = circle_config(services, tmp_path, episodes=16, minutes=0.0)
    shown, expert = io.StringIO(), Expert()
    made = asyncio.run(evaluated_and_demonstrated(base, expert, shown))

    report = json.loads((made.path / "report.json").read_text())
    assert (report["success_before"], report["success_after"], report["lost"]) == (1.0, None, 0), shown.getvalue()
    assert report["evaluation"]["before"]["episodes"] == 16
    assert expert.requests > 30
    ended = read_events(made.config().bus, [trajectories.TOPIC])
    demonstrated = [trajectory for trajectory in ended if trajectory.purpose == "demonstration"]
    tasks = made.tasks()
    assert {t.task_id for t in demonstrated if t.outcome == "success"} == {task.task_id for task in tasks.train}
    assert all(t.version_min is None and not t.untrainable for t in demonstrated)
    done = invoke("capture", made.id, "--state", str(tmp_path), "-o", str(made.path / "run.dart"))
    assert done.exit_code == 0, done.output
    holding = [file for file in made.path.rglob("*") if file.is_file() and KEY.encode() in file.read_bytes()]
    assert not holding, "the key is in no configuration, log, report or bundle of the run"

    never = replace(base.rollout, scripted=replace(base.rollout.scripted, success_rate=0.0))
    training = replace(
        base,
        rollout=never,
        run=replace(base.run, minutes=MINUTES, train_steps=2),
        evaluation=replace(base.evaluation, episodes=8),
    )
    again = folder.create(training, HERE / "circle-tasks.toml", made.id, resume=True)
    asyncio.run(session_of(again, Console(file=shown, width=160)).run())
    assert json.loads((made.path / "report.json").read_text())["success_before"] < 0.5, "not the endpoint's"
    state = RunState().fold(read_log(again.config().bus, [curated.TOPIC]))
    pooled = {m.trajectory_id for group, _ in state.groups.values() for m in group.members if m.source == "pool"}
    assert pooled, shown.getvalue()
    assert pooled <= {trajectory.trajectory_id for trajectory in demonstrated}
