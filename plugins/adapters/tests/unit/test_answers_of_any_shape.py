"""Servers of adapters whose answers have any shape: each is a fault of the episode, with the value in its reason."""

import base64
import contextlib
import io
import json
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from aiohttp import web
from PIL import Image

from dart_adapters import androidworld, openenv
from dart_adapters.settings import clamp_reward, flag_of, number_of, text_of
from dart_streams.actions import KeyDown, Type, Wait
from dart_streams.config import parse
from dart_streams.config.tasks import Task
from tests.answering import answering
from workers.env.environment import EnvironmentBackend, EnvironmentFault
from workers.env.fault_boundary import ContainedBackend, ContainedEnvironment

TASK = Task(environment="any", page="page", seed=0, max_steps=5, split="train")
Image.new("RGB", (8, 8)).save(drawn := io.BytesIO(), "PNG")
IMAGE = base64.b64encode(drawn.getvalue()).decode()
RIGHT = {"observation": {"screenshot": IMAGE, "goal": "Click"}, "reward": None, "done": False}


@contextlib.asynccontextmanager
async def serving(answers: dict[str, str], noted: list[Any] | None = None) -> AsyncIterator[str]:
    """Yield the address of a server that answers messages and paths with these texts; it notes messages."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path != "/ws":
            return web.Response(text=answers.get(request.path, "{}"))
        connection = web.WebSocketResponse()
        await connection.prepare(request)
        notes = [] if noted is None else noted
        notes.append("connection")
        async for message in connection:
            notes.append(json.loads(message.data))
            await connection.send_str(answers.get(notes[-1]["type"], "{}"))
        return connection

    async with answering(answer) as url:
        yield url


def backend_at(module: Any, **options: str) -> EnvironmentBackend:
    table = {"backend": module.__name__.rpartition(".")[2], "installed": {"options": options, "call_timeout_s": 60.0}}
    return cast(EnvironmentBackend, module.backend(parse({"env": table})))


@contextlib.asynccontextmanager
async def stepped(backend: EnvironmentBackend) -> AsyncIterator[ContainedEnvironment]:
    """Yield an episode's environment after its first step."""
    environment = ContainedEnvironment(ContainedBackend(backend))
    try:
        await environment.open(TASK)
        await environment.reset(TASK)
        await environment.step(Wait(), "wait")
        yield environment
    finally:
        await environment.close()


async def played(backend: EnvironmentBackend) -> float:
    async with stepped(backend) as environment:
        return await environment.evaluate()


def assert_own_words(fault: EnvironmentFault) -> None:
    """Assert that the adapter itself refused the value: the boundary would name what it raised instead."""
    assert "() raised " not in str(fault)


def observation(**fields: Any) -> str:
    return json.dumps({"type": "observation", "data": {**RIGHT, **fields}})


WRONG = {
    "NaN": observation(reward=float("nan")),
    "infinite": observation(reward=float("inf")),
    "a reward as a text": observation(reward="1"),
    "a reward as a truth value": observation(reward=True),
    "a list of rewards": observation(reward=[1.0]),
    "done as a text": observation(done="false"),
    "done as a number": observation(done=0.5),
    "an observation as a list": observation(observation=[IMAGE]),
    "no image": observation(observation={"goal": "Click"}),
    "an image of no base64": observation(observation={"screenshot": "\u00fc", "goal": "Click"}),
    "an image of other bytes": observation(observation={"screenshot": "AAAA", "goal": "Click"}),
    "a goal as a list": observation(observation={"screenshot": IMAGE, "goal": ["Click"]}),
    "half a character": observation(observation={"screenshot": IMAGE, "goal": "\ud83d"}),
    "data as a list": json.dumps({"type": "observation", "data": [1]}),
    "no object": "[]",
    "no JSON": "{",
    "nested": "[" * 100_000,
    "another type": json.dumps({"type": "news", "data": RIGHT}),
}


@pytest.mark.parametrize("answer", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("call", ["reset", "step"])
async def test_any_answer_of_openenv_is_a_fault_or_a_screen(call: str, answer: str):
    async with serving({"reset": observation(), "step": observation(reward=0.5)} | {call: answer}) as url:
        if call == "step" and answer in (WRONG["a goal as a list"], WRONG["half a character"]):
            return  # The instruction is that of the reset.
        with pytest.raises(EnvironmentFault) as fault:
            await played(backend_at(openenv, url=url))
        assert_own_words(fault.value)
        assert answer not in (WRONG["no JSON"], WRONG["nested"]) or "the answer can't be read" in str(fault.value)


async def test_the_right_answers_of_openenv_are_played():
    async with serving({"reset": observation(), "step": observation(reward=0.5)}) as url:
        assert await played(backend_at(openenv, url=url)) == 0.5


async def test_a_reset_of_openenv_is_a_new_connection():
    """What an episode leaves in its environment is the server's matter: the connection ends, and so does a held key."""
    noted: list[Any] = []
    async with serving({"reset": observation(), "step": observation()}, noted) as url:
        environment = await backend_at(openenv, url=url).open(TASK)
        await environment.reset(TASK)
        await environment.step(KeyDown("shift"), "hold")
        noted.clear()
        await environment.reset(TASK)
        await environment.step(Type("a"), "type")
        await environment.close()
    reset, step = {"seed": 0, "task_name": "page"}, {"action_str": "keyboard_type('a')"}
    sent = [{"type": kind, "data": data} for kind, data in (("reset", reset), ("step", step))]
    assert noted == [{"type": "close"}, "connection", *sent, {"type": "close"}]


SCORES = ["NaN", "Infinity", "1e400", '"1"', "true", "[1]", "{}", "null"]


@pytest.mark.parametrize("score", SCORES)
async def test_any_score_of_androidworld_is_a_fault_or_a_number(score: str):
    answers = {"/task/goal": '{"goal": null}', "/screenshot": json.dumps({"pixels": IMAGE})}
    async with serving({**answers, "/task/score": '{"score": 1.5}'}) as url:
        assert await played(backend_at(androidworld, urls=url)) == 1.0
    async with serving({**answers, "/task/score": f'{{"score": {score}}}'}) as url:
        with pytest.raises(EnvironmentFault) as fault:
            await played(backend_at(androidworld, urls=url))
        assert_own_words(fault.value)


def test_absent_fields_have_defaults_and_sums_are_finite():
    assert (number_of({}, "a.b"), flag_of({"a": None}, "a"), text_of({"a": 1}, "a.b")) == (0.0, False, "")
    with pytest.raises(EnvironmentFault, match="add up to inf"):
        clamp_reward(1e308 * 10)
