"""Functions of desktops beside mouse and keyboard: they change real files of real applications."""

import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from dart_desktops.desktop import documents
from dart_desktops.desktop.backend import DesktopBackend
from dart_desktops.desktop.environment import DesktopEnvironment
from dart_streams.actions import Call, Hotkey, Type, Wait, format
from dart_streams.config import Config, parse
from dart_streams.config.tasks import Task
from examples.in_memory_run import ObservationLog, PolicyFunction
from tests import events
from tests.sources import ROOT
from tests.unit.workers.env.episodes import TRAINER, runner_of
from topics.action_requests import ActionRequest
from topics.observations import Observation
from workers.env import conformance
from workers.env.backends.registry import backend_of
from workers.env.environment import Screen

pytestmark = [pytest.mark.usefixtures("desktops_of_normal_priority"), pytest.mark.asyncio(loop_scope="module")]


def task(family: str, seed: int = 0) -> Task:
    return Task(environment="desktop", page=family, seed=seed, max_steps=10, split="train")


def config() -> Config:
    desktop = {"calls": True, "call_timeout_s": 300.0}
    return parse({"env": {"backend": "desktop", "slots": 2, "desktop": desktop}, "policy": {"max_tokens": 400}})


class Player:
    """Steps of one environment."""

    def __init__(self, environment: DesktopEnvironment) -> None:
        self.environment = environment
        self.steps = 0

    async def call(self, name: str, **arguments: Any) -> Screen:
        self.steps += 1
        return await self.environment.step(Call(name, arguments), str(self.steps))

    async def saved(self) -> bytes:
        [path] = self.environment._task().watched
        return (await self.environment._outcome()).bytes(path) or b""


@pytest_asyncio.fixture(loop_scope="module")
async def player(backend: DesktopBackend, request: pytest.FixtureRequest) -> AsyncIterator[Player]:
    chosen = task(*request.param)
    environment = await backend.open(chosen)
    await environment.reset(chosen)
    assert await environment.evaluate() == 0
    yield Player(environment)
    await environment.close()


@pytest.mark.parametrize("player", [("sheet", 0)], indirect=True)
async def test_cells_of_a_spreadsheet_are_set_and_saved(player):
    before = documents.cells_of(await player.saved())
    shown = (await player.call("calc.read_cells")).returned.splitlines()
    assert {line.split(": ")[0] for line in shown} == set(before)
    assert f"A1: {before['A1']}" in shown
    seen = await player.environment.step(Wait(), "seen")
    changed = await player.call("calc.set_cells", cells={"D1": 5, "D2": "=D1*2", "D3": "five"})
    assert (changed.returned, changed.done) == ("Set D1, D2, D3.", False)
    assert changed.image != seen.image, "the application shows it"
    assert documents.cells_of(await player.saved()) == before, "not saved yet"
    assert (await player.call("calc.set_cells", cells={"no cell": 1})).returned.startswith("Error: ")
    done = await player.call("calc.save")
    assert (done.returned, done.done) == ("Saved.", True)
    assert documents.cells_of(await player.saved()) == before | {"D1": 5.0, "D2": 10.0, "D3": "five"}


@pytest.mark.parametrize("player", [("sheet", 1)], indirect=True)
async def test_mouse_and_keyboard_and_calls_act_on_the_same_document(player):
    await player.environment.step(Hotkey(("ctrl", "shift", "t")), "a")
    await player.environment.step(Type("F7\n"), "b")
    await player.environment.step(Type("typed\n"), "c")
    assert "F7: typed" in (await player.call("calc.read_cells")).returned.splitlines()


async def test_a_desktop_that_was_prepared_ahead_offers_the_same(backend):
    chosen = task("sheet", 4)
    backend.expect(chosen)
    await backend.spares.prepared()
    environment = await backend.open(chosen)
    assert environment.prepared == chosen
    assert "calc.save" in [offer.name for offer in (await environment.reset(chosen)).calls]
    assert "A1: " in (await environment.step(Call("calc.read_cells", {}), "1")).returned
    await environment.close()


@pytest.mark.parametrize("player", [("document", 0)], indirect=True)
async def test_a_call_solves_a_task_of_a_text(player):
    target = player.environment._task().instruction.split('"')[1]
    before = documents.paragraphs_of(await player.saved())
    assert (await player.call("writer.read_text")).returned.splitlines() == before
    assert (await player.call("writer.add_paragraph", text=target)).returned == "Added a paragraph."
    assert (await player.call("writer.save")).done
    assert await player.environment.evaluate() == 1
    assert documents.paragraphs_of(await player.saved()) == [*before, target]


@pytest.mark.parametrize("player", [("slide", 0)], indirect=True)
async def test_a_call_solves_a_task_of_a_presentation(player):
    target = player.environment._task().instruction.split('"')[1]
    [title] = documents.paragraphs_of(await player.saved())
    assert (await player.call("impress.read_texts")).returned == f"slide 1, shape 1: {title}"
    assert "no text at slide 2" in (await player.call("impress.set_text", slide=2, shape=1, text="x")).returned
    await player.call("impress.set_text", slide=1, shape=1, text=target)
    assert (await player.call("impress.save")).done
    assert await player.environment.evaluate() == 1


@pytest.mark.parametrize("player", [("edit", 0)], indirect=True)
async def test_files_of_the_home_are_listed_read_and_written_and_no_others(player):
    assert (await player.call("files.list")).returned == "note.txt"
    text = (await player.call("files.read", path="note.txt")).returned
    for path in ("/etc/passwd", "../../etc/passwd", "none.txt", "."):
        assert (await player.call("files.read", path=path)).returned.startswith("Error: ")
    assert (await player.call("files.write", path="a/b.txt", text="é\n")).returned == "Wrote a/b.txt."
    assert (await player.call("files.read", path="a/b.txt")).returned == "é\n"
    target = player.environment._task().instruction.split('"')[1]
    assert (await player.call("files.write", path="note.txt", text=target + text)).done
    assert await player.environment.evaluate() == 1
    assert (await player.saved()).decode() == target + text


@pytest.mark.parametrize("player", [("edit", 1)], indirect=True)
async def test_a_shell_is_beside_mouse_and_keyboard_in_one_episode(player, monkeypatch):
    assert (await player.call("shell.run", command="pwd; ls; false")).returned == "/home/user\nnote.txt\n\nExit code 1."
    assert (await player.call("shell.run", command="seq 100000")).returned.startswith("1\n2\n")
    alone = (await player.call("shell.run", command="cat < /dev/tcp/127.0.0.1/22; ls /work /root; id -u")).returned
    assert "No such file" in alone and not alone.endswith("\n0\n"), "it runs in the sandbox, as its user"
    left = (await player.call("shell.run", command="sleep 100 & echo begun")).returned
    assert left == "begun\n"
    hung = (await player.call("shell.run", command="sleep 100")).returned
    assert hung.startswith("Error: Command") and "timed out after 20 seconds" in hung
    target = player.environment._task().instruction.split('"')[1]
    assert (await player.call("shell.run", command=f"printf %s {target!r} | cat - note.txt > x && mv x note.txt")).done
    assert await player.environment.evaluate() == 1


async def test_desktops_with_calls_keep_the_contract(backend):
    chosen = task("edit", 3)
    start = await conformance.check_start(backend, chosen)
    assert [offer.name for offer in start.calls] == ["files.list", "files.read", "files.write", "shell.run"]
    await conformance.check_ids(backend, chosen)
    await conformance.check_neighbors(backend, chosen, start)


async def test_tools_of_a_server_and_functions_of_the_desktop_go_together():
    pytest.importorskip("mcp", reason="`make desktop` installs the package mcp")
    shop = ROOT / "plugins/adapters/tests/unit/mcp/shop.py"
    servers = [{"name": "shop", "command": [sys.executable, str(shop)], "only": ["add"]}]
    desktop = {"calls": True, "call_timeout_s": 300.0}
    backend = backend_of(parse({"env": {"backend": "desktop", "desktop": desktop, "mcp": {"servers": servers}}}))
    await backend.start()
    chosen = task("edit", 1)
    environment = await backend.open(chosen)
    first = await environment.reset(chosen)
    assert [offer.name for offer in first.calls] == ["files.list", "files.read", "files.write", "shell.run", "shop.add"]
    added = await environment.step(Call("shop.add", {"first": 1, "second": 2}), "1")
    assert (added.returned, added.image) == ("3", first.image)
    assert (await environment.step(Call("files.list", {}), "2")).returned == "note.txt"
    assert await conformance.solve(environment, chosen), "the oracle of the desktop is there"
    assert await environment.evaluate() == 1
    await environment.close()
    await backend.stop()


async def test_a_repeated_id_calls_nothing(backend):
    chosen = task("sheet", 2)
    environment = await backend.open(chosen)
    first = await environment.reset(chosen)
    assert [offer.name for offer in first.calls][:3] == ["calc.read_cells", "calc.set_cells", "calc.save"]
    said = Call("calc.set_cells", {"cells": {"F1": "=F1+1"}})
    once = await environment.step(said, "1")
    assert (await environment.step(Call("calc.save", {}), "1")).returned == once.returned
    assert not (await environment.step(Wait(), "2")).done
    await environment.close()


async def test_an_episode_plays_calls_and_the_policy_reads_their_results(backend):
    requests: list[ActionRequest] = []

    def policy(request: ActionRequest) -> str:
        requests.append(request)
        if len(requests) == 1:
            return format(Call("files.read", {"path": "note.txt"}))
        text = [turn.text for turn in request.turns if (turn.text or "").startswith("Returned: ")][-1]
        target = next(turn.text or "" for turn in request.turns if turn.role == "user").split('"')[1]
        return format(Call("files.write", {"path": "note.txt", "text": target + text.removeprefix("Returned: ")}))

    log, chosen = ObservationLog(), task("edit", 5)
    order = events.rollout_order(task_id=chosen.task_id)
    await runner_of(config(), backend, log, PolicyFunction(policy, TRAINER)).run(order, chosen, lambda _: None)
    observations: list[Observation]
    [observations] = log.observations.values()
    assert (observations[-1].end.kind, observations[-1].end.reward) == ("success", 1.0)
    assert [step.returned for step in observations[1:]] == [observations[1].returned, "Wrote note.txt."]
    assert "files.write(" in requests[0].turns[0].text
