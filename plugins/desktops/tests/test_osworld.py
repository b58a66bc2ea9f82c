"""The backend ``osworld`` on desktops that are reached by OSWorld's HTTP API alone, with leases and faults."""

import asyncio
import contextlib
import json
import os
import shlex
import signal
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import aiohttp
import psutil
import pytest
import pytest_asyncio

from dart_desktops.desktop.families import FAMILIES
from dart_desktops.osworld import backend as backend_module
from dart_desktops.osworld.backend import OsworldBackend
from dart_desktops.osworld.environment import OsworldEnvironment, wait_ready
from dart_desktops.osworld.machine import Machine, MachineEndpoint
from dart_desktops.osworld.providers import HeldMachine
from dart_desktops.osworld.pyautogui_programs import build_program
from dart_streams.actions import Click, Hotkey, MouseDown, MouseUp, Scroll, Type, Wait
from dart_streams.config import Config, Env, Osworld, OsworldMachine
from dart_streams.config.tasks import Task
from dart_streams.deadline import Deadline
from plugins.desktops.tests.served_desktops import Served, served, wait_for_window
from plugins.desktops.tests.spoiled_paths import check_spoiled
from tests.action_probe import ECHO
from tests.environments import check_oracle, opened, playing
from tests.processes import command_of
from tests.waiting import until, wait_until
from workers.env import conformance
from workers.env.backends.connection import StatusFault
from workers.env.environment import EnvironmentFault, Screen

pytestmark = pytest.mark.asyncio(loop_scope="module")
SIZE = (320, 240)
LEASE_S = 60.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def desktops(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """Two desktops."""
    async with served(tmp_path_factory.mktemp("served"), SIZE, slots=2, lease_s=LEASE_S) as running:
        yield running


def task(family: str, seed: int = 0) -> Task:
    return Task(environment="osworld", page=family, seed=seed, max_steps=10, split="train")


def backend(settings: Osworld) -> OsworldBackend:
    return OsworldBackend(Config(env=Env(backend="osworld", osworld=settings)))


def leasing(desktops: Served, **settings: Any) -> OsworldBackend:
    settings = {"call_timeout_s": 60.0, "reset_timeout_s": 400.0, "lease_s": LEASE_S, **settings}
    return backend(Osworld(lease_url=desktops.leases, lease_token=f"file:{desktops.token_file}", **settings))


def has_ended(process: psutil.Process) -> bool:
    """Return whether a process has ended, reaped or not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_ZOMBIE
    return True


async def states(desktops: Served) -> list[str]:
    return [slot["state"] for slot in (await desktops.ask("GET"))[1]]  # type: ignore[index]


# --- the contract of environments


async def test_the_backend_keeps_the_contract(desktops):
    await conformance.check(leasing(desktops), task("answer", 3))


FOLDERS = "/tmp /var/tmp /dev/shm /run/user/1000 /home/user"
LEAVE = f"""
for folder in {FOLDERS}; do echo left > $folder/left; mkdir -p $folder/.left; chmod 0 $folder/.left; done
ipcmk -M 4096 -S 1 -Q
setsid sleep 1000 &
for kind in clipboard primary; do echo left | xclip -selection $kind; done
xprop -root -f LEFT 8s -set LEFT behind
gsettings set org.gnome.desktop.interface clock-show-seconds true
/usr/bin/python3 -c "
from Xlib import display
x = display.Display()
x.change_keyboard_control(bell_percent=7)
x.sync()"
python -c "import pyautogui; pyautogui.keyDown('shift'); pyautogui.mouseDown(5, 6)"
"""
HELD = """
from Xlib import display
x = display.Display()
found = {"key": any(x.query_keymap()), "button": x.screen().root.query_pointer().mask & 256}
found["bell"] = x.get_keyboard_control().bell_percent == 7
print(*(name for name in found if found[name]), sep="\\n")
"""
LEFT = f"""
for folder in {FOLDERS}; do ls -A $folder | grep -x left; ls -A $folder | grep -x .left; done
tail -qn +2 /proc/sysvipc/msg /proc/sysvipc/sem | grep -q . && echo shared
pgrep -x sleep > /dev/null && echo process
for kind in clipboard primary; do xclip -o -selection $kind | grep -x left; done
xprop -root LEFT | grep -o behind
gsettings get org.gnome.desktop.interface clock-show-seconds | grep true
/usr/bin/python3 -c {shlex.quote(HELD)} | grep .
"""
PLACES = 2 * 5 + 1 + 1 + 2 + 1 + 1 + 1 + 2
TOUCH = "import pyautogui; pyautogui.moveTo(1, 1); pyautogui.moveTo(2, 2)"


class ProbeMachine(OsworldEnvironment):
    """A machine with a program in front that notes its input."""

    read = 0

    async def reset(self, task: Task) -> Screen:
        screen = await super().reset(task)
        self.read = 0
        echo = f"exec /usr/bin/python3 -c {shlex.quote(ECHO)} > /tmp/received"
        await self._machine.launch(["/bin/sh", "-c", echo])
        await self._machine.execute(f"until [ -s /tmp/received ]; do python -c '{TOUCH}'; done", shell=True)
        return screen

    async def received(self) -> list[list[Any]]:
        lines = (await self._machine.file("/tmp/received")).decode().splitlines()
        new, self.read = lines[self.read :], len(lines)
        return [json.loads(line) for line in new]

    async def leave(self) -> None:
        await self._machine.execute(f"({LEAVE}) > /dev/null 2>&1", shell=True)
        assert len(left := await self.left()) == PLACES, " ".join(left)

    async def left(self) -> list[str]:
        return (await self._machine.execute(f"({LEFT}) 2> /dev/null", shell=True))["output"].splitlines()


async def test_a_program_receives_what_the_contract_says_and_leaves_nothing(desktops, monkeypatch):
    monkeypatch.setattr(backend_module, "OsworldEnvironment", ProbeMachine)
    await conformance.check_probe(leasing(desktops), task("answer", 3))


@pytest.mark.parametrize("family", FAMILIES)
async def test_the_oracle_solves_each_family(desktops, family):
    chosen = task(family, 1)
    async with opened(leasing(desktops), chosen) as (environment, start):
        assert (start.width, start.height) == SIZE
        await check_oracle(environment, chosen)


@pytest.mark.parametrize(("family", "path"), [("edit", "note.txt"), ("remove", "files")])
async def test_a_watched_path_that_cannot_be_read_is_not_solved(desktops, family, path):
    async with playing(leasing(desktops), task(family)) as environment:
        await check_spoiled(environment, partial(environment._machine.execute, shell=True), path)


async def test_actions_do_what_they_say(desktops):
    text = "a<b> {}'\"\\ é€😀\nend\t."
    steps = (Click(150, 120), Hotkey(("ctrl", "a")), Type(text), Hotkey(("ctrl", "s")), Scroll(90, 90, "down"), Wait())
    async with desktops.machine() as machine:
        await machine.upload("~/note.txt", b"old")
        await machine.launch(["mousepad", "--disable-server", "/home/user/note.txt"])
        await wait_for_window(machine, "note.txt")
        for action in steps:
            if (source := build_program(action)) is not None:
                ended = await machine.execute(["python", "-c", source])
                assert (ended["returncode"], ended["error"]) == (0, ""), action

        async def saved() -> bool:
            return (await machine.file("~/note.txt")).decode().rstrip("\n") == text

        await until(saved)
        for action in (MouseDown(5, 6), MouseUp(70, 80)):
            await machine.execute(["python", "-c", str(build_program(action))])
        pointer = await machine.send("GET", "/cursor_position")
        assert json.loads(pointer) == [70, 80]


# --- at most once


class Cut:
    """A proxy in front of a machine that passes requests on and cuts some answers off."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.requests: list[bytes] = []
        self.cutting = b"nothing"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next((int(line.split(b":")[1]) for line in head.splitlines() if b"content-length" in line.lower()), 0)
        request = head + (await reader.readexactly(length) if length else b"")
        self.requests.append(request)
        there, back = await asyncio.open_connection("127.0.0.1", self.port)
        back.write(request)
        await back.drain()
        answer = await there.read(1) if self.cutting in request else await there.read()
        if self.cutting not in request:
            writer.write(answer)
            await writer.drain()
        for end in (writer, back):
            end.close()


async def test_an_action_whose_answer_is_lost_is_a_fault_and_was_sent_once(desktops):
    async with desktops.machine() as machine:
        cut = Cut(int(machine.endpoint.url.rpartition(":")[2]))
        listener = await asyncio.start_server(cut.serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"

        class Given:
            async def acquire(self, _: object) -> HeldMachine:
                async def release() -> None:
                    pass

                return HeldMachine(MachineEndpoint(url=url, token=machine.endpoint.token), release)

        made = leasing(desktops)
        made.provider = Given()
        async with playing(made, task("enter")) as environment:
            cut.requests.clear()
            cut.cutting = b"pyautogui"
            with pytest.raises(EnvironmentFault, match="/execute"):
                await environment.step(Type("once"), "the action")
            with pytest.raises(EnvironmentFault, match="given back"):
                await environment.step(Type("once"), "the action")
            with pytest.raises(EnvironmentFault, match="given back"):
                await environment.evaluate()
            assert sum(b"pyautogui" in request for request in cut.requests) == 1
        listener.close()
        await machine.execute(["true"])
        await machine.execute(["python", "-c", "import pyautogui; pyautogui.press('enter')"])

        async def wrote() -> bool:
            return (await machine.file("/tmp/dart-family/output")) == b"once\n"

        await until(wrote)


# --- faults, and healing


def sandboxes(desktops: Served) -> list[psutil.Process]:
    """Return the sandboxes of the server, those without a lease among them."""
    return [child for child in psutil.Process(desktops.process.pid).children() if "bwrap" in command_of(child)]


async def test_a_desktop_that_dies_is_a_fault_and_the_next_episode_has_another(desktops):
    made = leasing(desktops)
    async with playing(made, task("answer")) as environment:
        killed = sandboxes(desktops)
        for process in killed:
            process.kill()
        await asyncio.to_thread(wait_until, lambda: all(map(has_ended, killed)), "the ends")
        with pytest.raises(EnvironmentFault, match="desktop"):
            await environment.step(Click(1, 1), "click")
    await environment.close()
    async with playing(made, task("answer")) as after:
        assert await conformance.solve(after, task("answer"))
        assert await after.evaluate() == 1


async def test_an_x_server_that_dies_is_a_fault_within_the_bound(desktops):
    environment = await leasing(desktops).open(task("answer"))
    await environment.reset(task("answer"))
    killed = []
    for process in psutil.process_iter(["name"]):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.info["name"] == "Xvfb" and set(process.parents()) & set(sandboxes(desktops)):
                process.kill()
                killed.append(process)
    assert killed
    await asyncio.to_thread(wait_until, lambda: all(map(has_ended, killed)), "the ends")
    with pytest.raises(EnvironmentFault, match=r"X server has ended|ConnectionClosedError"):
        await environment.step(Click(1, 1), "click")
    await environment.close()


async def test_input_to_an_x_server_that_has_just_died_is_answered(desktops):
    """The server in the desktop may find its connection closed before it sees that the X server has ended."""
    held = await leasing(desktops).provider.acquire(Deadline(120))
    async with Machine(held.endpoint, 60.0) as machine:
        await wait_ready(machine, Deadline(120))
        source = "import pyautogui, subprocess\nsubprocess.run(['pkill', '-9', 'Xvfb'])\npyautogui.click(5, 5)"
        ended = await machine.execute(["python", "-c", source])
        assert ended["returncode"] == 1
        assert "ConnectionClosedError" in ended["error"]
    await held.release()


async def test_a_client_that_stops_renewing_loses_its_desktop(desktops):
    lease = await desktops.lease(ttl_s=20.0)
    assert lease["ttl_s"] == 20.0
    async with Machine(MachineEndpoint(url=lease["url"], token=lease["token"]), 60.0) as machine:
        assert await machine.screen_size() == SIZE

        async def ended() -> bool:
            return "leased" not in await states(desktops)

        await until(ended)
        with pytest.raises(StatusFault) as fault:
            await machine.screen_size()
        assert fault.value.status in {401, 410}
    assert (await desktops.ask("POST", f"/leases/{lease['id']}/renew"))[0] == 404
    assert (await desktops.ask("DELETE", f"/leases/{lease['id']}"))[0] == 204


async def test_a_client_that_only_speaks_to_its_desktop_keeps_it(desktops):
    lease = await desktops.lease(ttl_s=20.0)
    async with Machine(MachineEndpoint(url=lease["url"], token=lease["token"]), 60.0) as machine:
        for seconds in ("21", "1"):
            await machine.execute(["sleep", seconds])
    assert (await desktops.ask("POST", f"/leases/{lease['id']}/renew"))[0] == 200
    assert (await desktops.ask("DELETE", f"/leases/{lease['id']}"))[0] == 204


async def test_a_command_that_fails_says_so_in_its_answer_and_in_the_log(desktops):
    async with desktops.machine() as machine:
        ended = await machine.execute(["python", "-c", "import time\nimport no_such_module_\u00e9"])
        assert (ended["status"], ended["returncode"]) == ("success", 1)
        await machine.execute(["true"])
        await machine.execute("echo no >&2; exit 7", shell=True)

    def failures() -> list[dict[str, Any]]:
        lines = (desktops.folder / "log").read_text().splitlines()
        return [json.loads(line) for line in lines if '"command failed"' in line]

    found = failures()
    assert [event["returncode"] for event in found[-2:]] == [1, 7]
    assert "no_such_module_" in found[-2]["error"]
    assert found[-1]["error"] == "no"


async def test_a_lease_outlives_its_time_while_it_is_renewed(desktops):
    async with playing(leasing(desktops, lease_s=30.0), task("enter")) as environment:
        await asyncio.sleep(32.0)
        await environment.step(Wait(), "1")


async def test_a_third_client_waits_for_a_desktop_or_is_refused_with_the_reason(desktops):
    async def both_ready() -> bool:
        return await states(desktops) == ["ready", "ready"]

    await until(both_ready)
    async with desktops.machine(), contextlib.AsyncExitStack() as second:
        await second.enter_async_context(desktops.machine())
        status, answer = await desktops.ask("POST")
        assert (status, answer["error"]) == (503, "no desktop is free: 2 of 2 are leased")
        made = leasing(desktops, reset_timeout_s=1.0)
        environment = await made.open(task("answer"))
        with pytest.raises(EnvironmentFault, match="2 of 2 are leased"):
            await environment.reset(task("answer"))
        waiting = asyncio.create_task(desktops.lease())
        await second.aclose()
        await desktops.ask("DELETE", f"/leases/{(await waiting)['id']}")


# --- who may


async def test_only_the_tokens_open_anything(desktops):
    for token in ("", "wrong"):
        for method, path in (("GET", "/leases"), ("POST", "/leases"), ("DELETE", "/leases/x")):
            assert (await desktops.ask(method, path, token=token))[0] == 401
    async with desktops.machine() as machine:
        for token in ("", "wrong", desktops.token):
            async with Machine(MachineEndpoint(url=machine.endpoint.url, token=token)) as other:
                with pytest.raises(EnvironmentFault, match="status 401"):
                    await other.execute(["true"])
        token = machine.endpoint.token
        for process in psutil.process_iter(["cmdline"]):
            line = " ".join(process.info["cmdline"] or ())
            assert token not in line
            assert desktops.token not in line
        seen = await machine.execute("env; cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n'", shell=True)
        assert token not in seen["output"]
        assert desktops.token not in seen["output"]
    log = Path(desktops.token_file).parents[2] / "log"
    assert "serving desktops" in log.read_text()
    assert desktops.token not in log.read_text()
    assert os.stat(desktops.token_file).st_mode & 0o777 == 0o600  # noqa: PTH116


async def test_what_is_not_of_the_contract_does_not_reach_the_sandbox(desktops):
    async with desktops.machine() as machine:
        for path in ("/session", "/step", "/osworld/screenshot", "/../ready", "/%2e%2e/ready"):
            for method in ("GET", "POST"):
                with pytest.raises(StatusFault, match=r"status 40[45]:"):
                    await machine.send(method, path, json_body={})


async def test_without_a_token_only_names_of_this_machine_are_answered(tmp_path):
    async with served(tmp_path, SIZE, slots=1, ask_token=False) as running:
        assert running.token_file is None
        async with running.machine() as machine:
            async with Machine(MachineEndpoint(url=machine.endpoint.url), 60.0) as other:
                assert await other.screen_size() == SIZE
            headers = {"Host": f"evil.example:{machine.endpoint.url.rpartition(':')[2]}"}
            for url in (f"{machine.endpoint.url}/platform", f"{running.leases}/leases"):
                async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
                    assert answer.status == 403


async def test_a_server_that_is_killed_leaves_no_desktop(tmp_path):
    async with served(tmp_path, SIZE, slots=1) as running, running.machine():
        tree = psutil.Process(running.process.pid).children(recursive=True)
        assert any(process.name() == "Xvfb" for process in tree)
        running.process.send_signal(signal.SIGKILL)
        await running.process.wait()
        assert not psutil.wait_procs(tree, timeout=60)[1]
        running.ask = AsyncMock()  # type: ignore[method-assign]


# --- other providers


async def test_a_machine_of_a_list_has_one_episode_at_a_time(desktops):
    async with desktops.machine() as machine:
        token = Path(desktops.token_file).parent / "machine.token"
        token.write_text(machine.endpoint.token)
        listed = (OsworldMachine(url=machine.endpoint.url, token=f"file:{token}"),)
        settings = Osworld(machines=listed, fresh="given", call_timeout_s=60.0, reset_timeout_s=400.0)
        one, other = backend(settings), backend(Osworld(machines=listed, fresh="given", reset_timeout_s=0.5))
        async with playing(one, task("answer")) as first:
            second = await other.open(task("answer"))
            with pytest.raises(EnvironmentFault, match=r"all 1 machines .* are in use"):
                await second.reset(task("answer"))
            assert await conformance.solve(first, task("answer"))
            assert await first.evaluate() == 1
        async with playing(one, task("enter")):
            pass


ACQUIRE = """
import contextlib, json, os, sys, urllib.request
server, token, made = sys.argv[1], open(sys.argv[2]).read(), b""
body = json.dumps({"ttl_s": float(os.environ["DART_LEASE_S"]), "wait_s": 60}).encode()
request = urllib.request.Request(server + "/leases", body, {"Authorization": "Bearer " + token})
while not made:
    with contextlib.suppress(urllib.error.HTTPError):  # None is free yet; the reset has a limit.
        made = urllib.request.urlopen(request).read()
print(made.decode())
"""
RELEASE = """
import json, sys, urllib.request
server, token = sys.argv[1], open(sys.argv[2]).read()
url = server + "/leases/" + json.load(sys.stdin)["id"]
urllib.request.urlopen(urllib.request.Request(url, None, {"Authorization": "Bearer " + token}, method="DELETE"))
"""


async def test_programs_make_and_remove_machines(desktops):
    arguments = desktops.leases, desktops.token_file
    commands = {
        "acquire": (sys.executable, "-c", ACQUIRE, *arguments),
        "release": (sys.executable, "-c", RELEASE, *arguments),
    }
    made = backend(Osworld(**commands, lease_s=LEASE_S, call_timeout_s=60.0, reset_timeout_s=400.0))
    async with playing(made, task("answer")) as environment:
        assert "leased" in await states(desktops)
        await environment.step(Click(1, 1), "click")
    assert "leased" not in await states(desktops)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("import sys; sys.exit('no machine left')", "no machine left"),
        ("print('ready')", "prints no machine as JSON"),
        ("print('{}')", "prints no machine as JSON"),
        ("import time; time.sleep(100)", "did not end in time"),
    ],
)
async def test_a_program_that_makes_no_machine_is_a_fault_with_its_reason(script, why):
    limit_s = 2.0 if "sleep" in script else 120.0
    made = backend(Osworld(acquire=(sys.executable, "-c", script), reset_timeout_s=limit_s))
    environment = await made.open(task("answer"))
    with pytest.raises(EnvironmentFault, match=why):
        await environment.reset(task("answer"))
    await environment.close()
