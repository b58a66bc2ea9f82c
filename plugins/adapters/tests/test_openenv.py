"""The adapter of OpenEnv, against a server that its real package makes."""

import asyncio
import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from console.launch.services.daemon import free_port
from dart_adapters import openenv
from dart_streams.actions import Click, Type
from dart_streams.config import parse
from dart_streams.config.tasks import Task
from dart_streams.errors import ServiceUnavailable
from tests.waiting import wait_until
from workers.env import conformance
from workers.env.environment import EnvironmentFault

PYTHON = Path(".venv/openenv/bin/python")
SERVER = Path(__file__).with_name("openenv_columns.py")
READY_S = 300.0
SIDE, COLUMNS = 64, 4

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="needs .venv/openenv: run `make adapters`")


def task(seed: int, page: str = "columns") -> Task:
    return Task(environment="openenv", page=page, seed=seed, max_steps=5, split="train")


def backend(url: str, **options) -> openenv.OpenEnvBackend:
    table = {"backend": "openenv", "installed": {"options": {"url": url, **options}, "call_timeout_s": 60.0}}
    return openenv.backend(parse({"env": table}))


class Server:
    """The running server."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = subprocess.Popen([str(PYTHON), "-I", str(SERVER), str(self.port)])

    def answers(self) -> bool:
        assert self.process.poll() is None
        with contextlib.suppress(ServiceUnavailable):
            asyncio.run(backend(self.url).start())
            return True
        return False

    def await_ready(self) -> None:
        wait_until(self.answers, "the server", READY_S)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    started = Server()
    try:
        started.await_ready()
        yield started
    finally:
        started.process.kill()
        started.process.wait()


class WithOracle(openenv.OpenEnvEnvironment):
    """An environment that knows how columns are hidden."""

    async def demonstrate(self, task):
        yield Click(task.seed % COLUMNS * SIDE // COLUMNS + 1, 1)


async def test_it_keeps_the_contract(server, monkeypatch):
    monkeypatch.setattr(openenv, "OpenEnvEnvironment", WithOracle)
    for seed in (0, 3):
        await conformance.check(backend(server.url), task(seed))


async def test_an_episode_is_scored_by_its_rewards(server):
    environment = await backend(server.url).open(task(2))
    start = await environment.reset(task(2))
    assert (start.width, start.height, start.instruction, start.done) == (SIDE, SIDE, "Click column 2.", False)
    assert not (await environment.step(Type("<é>"), "1")).done
    assert (await environment.step(Click(2 * SIDE // COLUMNS, 1), "2")).done
    assert await environment.evaluate() == 1
    await environment.close()


@pytest.mark.parametrize(("page", "text", "why"), [("other", "", "EXECUTION_ERROR"), ("columns", "die", "broke")])
async def test_an_environment_that_raises_is_a_fault_with_its_reason(server, page, text, why):
    environment = await backend(server.url).open(task(0, page))
    with pytest.raises(EnvironmentFault, match=why):
        await environment.reset(task(0, page))
        await environment.step(Type(text), "1")
    with pytest.raises(EnvironmentFault, match="was not reset"):
        await environment.evaluate()
    await environment.close()


async def test_an_action_that_the_schema_does_not_have_does_nothing(server):
    environment = await backend(server.url, action_field="other").open(task(1))
    start = await environment.reset(task(1))
    assert conformance.same_screen(await environment.step(Click(1, 1), "1"), start)
    assert await environment.evaluate() == 0
    await environment.close()


async def test_a_server_that_dies_is_a_fault_in_time():
    own = Server()
    try:
        await asyncio.to_thread(own.await_ready)
        environment = await backend(own.url).open(task(0))
        await environment.reset(task(0))
        own.process.kill()
        with pytest.raises(EnvironmentFault, match="the connection has ended"):
            await environment.step(Click(1, 1), "1")
        await environment.close()
        with pytest.raises(EnvironmentFault):
            await environment.reset(task(0))
        with pytest.raises(ServiceUnavailable, match="start OpenEnv's server"):
            await backend(own.url).start()
    finally:
        own.process.kill()
        own.process.wait()
