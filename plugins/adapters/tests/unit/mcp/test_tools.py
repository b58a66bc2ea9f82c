"""Tools of a real MCP server in episodes: the real runner, a simulated environment, the answers of a function."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="`make mcp` installs the package mcp")

from dart_adapters.mcp.server import McpServer
from dart_streams.actions import Call, Click, format
from dart_streams.config import Config
from dart_streams.config.tasks import Task
from dart_streams.errors import ConfigError
from examples.in_memory_run import PolicyFunction
from tests.unit.workers.env import episodes
from tests.unit.workers.env.episodes import TRAINER, simulated_config
from tests.waiting import wait_until
from topics.action_requests import ActionRequest
from topics.observations import Observation
from workers.env import conformance
from workers.env.backends.registry import backend_of
from workers.env.environment import EnvironmentFault

SHOP = (sys.executable, str(Path(__file__).with_name("shop.py")))
TASK = Task(environment="simulated", page="box", seed=3, max_steps=6, split="train")


def configured(*command: str, call_timeout_s: float = 60.0, **keys: Any) -> Config:
    tools = [{"name": "shop", "command": list(command or SHOP), **keys}]
    return simulated_config(
        env={
            "backend": "simulated",
            "simulated": {"reset_ms": 0, "step_ms": 0, "evaluate_ms": 0, "call_timeout_s": call_timeout_s},
            "mcp": {"servers": tools},
        },
        policy={"max_tokens": 400},
    )


def play(config: Config, *answers: str) -> tuple[list[Observation], list[ActionRequest]]:
    """Play an episode with these answers, the last one repeated; return observations and requests."""
    requests: list[ActionRequest] = []

    def policy(request: ActionRequest) -> str:
        requests.append(request)
        return answers[min(len(requests), len(answers)) - 1]

    play = episodes.play(config, PolicyFunction(policy, TRAINER), "box", backend=backend_of(config))
    (observations,) = asyncio.run(play)
    return observations, requests


def say(name: str, **arguments: Any) -> str:
    return format(Call(f"shop.{name}", arguments))


def texts(request: ActionRequest) -> list[str]:
    return [turn.text for turn in request.turns if turn.text is not None]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_tool_is_called_and_the_policy_reads_what_it_returned():
    observations, requests = play(
        configured(), say("add", first=2, second=40), say("fail", why="sold out"), "Action: finished()"
    )
    first, added, failed, last = observations
    assert {offer.name for offer in first.calls} == {
        f"shop.{name}" for name in ("add", "note", "fail", "hang", "leave", "folder", "spoil")
    }
    [add] = [offer for offer in first.calls if offer.name == "shop.add"]
    assert add.description == "Add two numbers."
    assert set(json.loads(add.parameters)["required"]) == {"first", "second"}
    assert (added.taken.action, added.returned) == (say("add", first=2, second=40), "42")
    assert failed.returned.startswith("Error: ")
    assert "sold out" in failed.returned
    assert (last.end.kind, last.returned) == ("failure", "")
    assert "shop.add" in texts(requests[0])[0]
    assert texts(requests[2])[-4:] == [
        added.taken.text,
        "Returned: 42",
        failed.taken.text,
        f"Returned: {failed.returned}",
    ]
    assert requests[2].turns[-1].image == failed.screenshot, "the screen is the last thing of a prompt"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (say("addd", first=1, second=2), "unknown function 'shop.addd'"),
        (say("add", first=1), "'second' is a required property"),
        (say("add", first="one", second=2), "'one' is not of type 'integer'"),
    ],
)
def test_a_call_that_does_not_fit_is_an_invalid_action_of_the_policy(answer, reason):
    observations, _ = play(configured(), answer)
    end = observations[-1].end
    assert (end.kind, end.reward) == ("invalid_action", 0.0)
    assert reason in end.reason


def test_only_the_wanted_tools_are_offered_and_an_episode_still_clicks():
    observations, _ = play(configured(only=["add"]), say("add", first=1, second=1), format(Click(0, 0)))
    assert [offer.name for offer in observations[0].calls] == ["shop.add"]
    assert [(step.taken.action, step.returned) for step in observations[1:3]] == [
        (say("add", first=1, second=1), "2"),
        (format(Click(0, 0)), ""),
    ]


def test_a_hanging_tool_is_a_fault_within_the_limit_and_its_process_ends(monkeypatch):
    usual = McpServer.call

    async def hurried(server: McpServer, tool: str, arguments: dict[str, Any]) -> str:
        server.call_timeout_s = 1.0 if tool == "hang" else server.call_timeout_s
        return await usual(server, tool, arguments)

    monkeypatch.setattr(McpServer, "call", hurried)
    observations, _ = play(configured(), say("folder"), say("hang"))
    end = observations[-1].end
    assert (end.kind, end.reward) == ("env_error", None)
    assert end.reason == "tool server shop: it does not answer hang within 1 s"
    pid, folder = observations[1].returned.split()
    wait_until(lambda: not alive(int(pid)), "the end of the process")
    assert not Path(folder).exists()


UNREAD = "Error: the answer of spoil can't be read: "


@pytest.mark.parametrize(
    ("kind", "returned"),
    [
        *((kind, UNREAD + "Invalid JSON: ") for kind in ("half", "nested", "nested, id last", "cut")),
        *((kind, UNREAD) for kind in ("no result", "no content", "no structure", "number")),
        *(("bytes", "a \ufffd\ufffd\ufffd b"), ("printed", "done")),
    ],
)
def test_an_answer_that_cannot_be_read_fails_its_call_at_once_and_no_other(kind, returned):
    observations, _ = play(configured(), say("spoil", kind=kind), "Action: finished()")
    assert observations[1].returned.startswith(returned)
    assert observations[-1].end.kind == "failure"


def test_a_server_that_ends_during_a_call_is_a_fault():
    observations, _ = play(configured(), say("leave"))
    assert (observations[-1].end.kind, observations[-1].end.reason) == (
        "env_error",
        "tool server shop: it has ended during leave",
    )


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (("/no/such/program",), "tool server shop: it does not serve: "),
        ((*SHOP, "no", "license"), "no license"),
        (("sleep", "100"), "tool server shop: it does not start within 3 s"),
    ],
    ids=["missing", "ends", "hangs"],
)
def test_a_server_that_does_not_start_is_a_fault_with_its_reason(command, reason):
    observations, _ = play(
        configured(*command, call_timeout_s=3.0 if command[0] == "sleep" else 60.0), "Action: wait()"
    )
    end = observations[-1].end
    assert end.kind == "env_error"
    assert reason in end.reason


def test_a_tool_that_the_server_lacks_is_refused_at_the_start():
    observations, _ = play(configured(only=["add", "ad"]), "Action: wait()")
    assert observations[-1].end.reason == "tool server shop: it has no tool ad"


async def test_each_reset_has_its_own_server_and_a_repeated_id_calls_nothing():
    backend = backend_of(configured())
    environment = await backend.open(TASK)
    first = await environment.reset(TASK)
    assert len(first.calls) == 7
    said = Call("shop.note", {"text": "a"})
    assert (await environment.step(said, "1")).returned == "a\n"
    assert (await environment.step(said, "1")).returned == "a\n"
    assert (await environment.step(said, "2")).returned == "a\na\n"
    again = await environment.reset(TASK)
    assert again.calls == first.calls
    assert (await environment.step(said, "3")).returned == "a\n", "nothing is left of the first server"
    await environment.close()
    with pytest.raises(EnvironmentFault, match="was not started"):
        await environment.step(said, "4")


async def test_a_backend_with_tools_keeps_the_rules_of_environments():
    backend = backend_of(configured())
    await backend.start()
    start = await conformance.check_start(backend, TASK)
    await conformance.check_ids(backend, TASK)
    await conformance.check_neighbors(backend, TASK, start)
    await backend.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="only there a process can die with its parent")
def test_a_server_dies_with_a_killed_worker():
    program = """
import asyncio, os, sys
from plugins.adapters.tests.unit.mcp.test_tools import TASK, Call, backend_of, configured
async def main():
    environment = await backend_of(configured()).open(TASK)
    await environment.reset(TASK)
    screen = await environment.step(Call("shop.folder", {}), "1")
    print(screen.returned, flush=True)
    await environment.step(Call("shop.hang", {}), "2")
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        pid, folder = worker.stdout.readline().split()
        assert alive(int(pid))
        worker.kill()
    wait_until(lambda: not alive(int(pid)), "the end of the server")
    for file in Path(folder).iterdir():
        file.unlink()
    Path(folder).rmdir()


def test_two_servers_have_two_names():
    with pytest.raises(ConfigError, match="names of servers are distinct: a, a"):
        simulated_config(env={"mcp": {"servers": [{"name": "a", "command": ["b"]}] * 2}})
