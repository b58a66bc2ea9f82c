"""Desktops in real sandboxes: tasks of real applications, isolation, and the cost of faults."""

import asyncio
import contextlib
import itertools
import json
import math
import os
import platform
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import psutil
import pytest
import pytest_asyncio

from dart_desktops.desktop import command_line
from dart_desktops.desktop.backend import DesktopBackend
from dart_desktops.desktop.environment import DesktopEnvironment
from dart_desktops.desktop.families import FAMILIES
from dart_desktops.desktop.problem import LARGE
from dart_desktops.desktop.sandbox import Sandbox
from dart_desktops.desktop.syscall_filter import REFUSED
from dart_streams.actions import Click, Hotkey, Type, Wait
from dart_streams.config import Config, Desktop, Env
from dart_streams.config.tasks import Task
from dart_streams.deadline import Deadline
from dart_streams.errors import ServiceUnavailable
from plugins.desktops.tests.spoiled_paths import check_spoiled
from tests.action_probe import ECHO
from tests.environments import check_family, check_held_ends, playing
from tests.keyboard import EDITED, TYPED
from tests.processes import command_of
from tests.waiting import until, wait_until
from workers.env import conformance
from workers.env.environment import EnvironmentFault
from workers.env.foreign_process import CALLS

BOUND_S = 180.0
SEEDS = 2
pytestmark = [pytest.mark.usefixtures("desktops_of_normal_priority"), pytest.mark.asyncio(loop_scope="module")]
STAYS_S = 2.0
WINDOW = "exec zenity --info --text done"
"""After a script, so that its session has a window."""


def task(family: str, seed: int = 0) -> Task:
    return Task(environment="desktop", page=family, seed=seed, max_steps=10, split="train")


def config(call_timeout_s: float = 300.0) -> Config:
    """A configuration with two slots, whose calls may take long: tests run on machines that do other things."""
    return Config(env=Env(backend="desktop", slots=2, desktop=Desktop(call_timeout_s=call_timeout_s)))


@pytest_asyncio.fixture(loop_scope="module")
async def opened(backend: DesktopBackend) -> AsyncIterator[DesktopEnvironment]:
    """An environment for one test, whose sandbox is not used again."""
    environment = await backend.open(task("answer"))
    yield environment
    environment.faulty = True
    await environment.close()


async def run(environment: DesktopEnvironment, script: str, limit_s: float = BOUND_S) -> str:
    """Run a script of the shell in a new session of the sandbox; return what it wrote."""
    session = {"command": ["/bin/sh", "-c", f"{script}\n{WINDOW}"], "files": {}, "watched": []}
    await environment.sandbox.request("POST", "session", session, limit_s)
    return (await environment._outcome()).output


def inside(sandbox: Sandbox, name: str) -> psutil.Process:
    """Return a process of a sandbox, as the host sees it."""
    assert sandbox.process is not None
    tree = psutil.Process(sandbox.process.pid).children(recursive=True)
    alive = (process for process in tree if process.status() != psutil.STATUS_ZOMBIE)
    return next(process for process in alive if name in command_of(process))


async def kill(process: psutil.Process) -> None:
    """Kill a process that is no child of this one, and wait for its end."""
    process.kill()
    with contextlib.suppress(psutil.NoSuchProcess):
        await asyncio.to_thread(wait_until, lambda: process.status() == psutil.STATUS_ZOMBIE)


@pytest.mark.parametrize("family", FAMILIES)
async def test_the_oracle_solves_each_family(backend, family):
    for seed in range(SEEDS):
        await check_family(backend, task(family, seed))


@pytest.mark.parametrize("family", ["answer", "choose", "tick", "enter", "form"])
@pytest.mark.parametrize("keys", [("escape",), ("enter",), ("alt", "f4")], ids="+".join)
async def test_what_a_window_ends_by_solves_nothing(backend, family, keys):
    for seed in range(SEEDS):
        environment = await backend.open(task(family, seed))
        await environment.reset(task(family, seed))
        await environment.step(Hotkey(keys), "end")
        assert await environment.evaluate() == 0.0
        await environment.close()


MOVED = ("ctrl x", "alt up", "ctrl v")


@pytest.mark.parametrize(
    ("family", "keys", "reward"),
    [
        ("remove", MOVED, 0),
        ("remove", ("f2", "ctrl a", "x", "enter"), 0),
        ("remove", ("delete", "enter"), 1),
        ("calculate", (), 1),
    ],
    ids=str,
)
async def test_what_else_solves_a_task_and_what_does_not(backend, family, keys, reward):
    """A file in another place is not deleted, one in the trash is; a product that was typed is shown."""
    async with playing(backend, task(family)) as environment:
        name = environment.problem.instruction.removeprefix("Delete ").removeprefix("Calculate ").rstrip(".")
        first = (
            [Type(name), Hotkey(("escape",))]
            if family == "remove"
            else [Type(str(math.prod(map(int, name.split("*")))))]
        )
        for number, action in enumerate([*first, *(Hotkey(tuple(one.split())) for one in keys)]):
            await environment.step(action, f"{number}")
        assert await environment.evaluate() == reward


@pytest.mark.parametrize("family", ["answer", "edit"])
async def test_desktops_keep_the_contract(backend, family):
    await conformance.check(backend, task(family, 3))


async def test_an_office_desktop_keeps_the_contract_but_for_single_actions(backend):
    """Single actions take a minute and a half, and are the same for each application."""
    chosen = task("sheet", 3)
    start = await conformance.check_start(backend, chosen)
    assert (start.width, start.height) == LARGE
    await conformance.check_ids(backend, chosen)
    await conformance.check_neighbors(backend, chosen, start)


async def test_an_office_task_without_its_programs_names_the_install_command(monkeypatch):
    own = DesktopBackend(config())
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(EnvironmentFault, match="localc, lowriter, loimpress: run `make desktop`"):
        await own.open(task("sheet"))


@pytest.mark.parametrize("family", FAMILIES)
async def test_the_first_screen_is_finished(backend, family):
    """Nothing is drawn later, so it does not depend on how long a prepared desktop has waited."""
    environment = await backend.open(task(family))
    start = await environment.reset(task(family))
    end = time.monotonic() + STAYS_S
    while time.monotonic() < end:
        assert (await environment._request("GET", "screen"))[0] == start.image
        await asyncio.sleep(0.1)
    await environment.close()


async def test_any_characters_are_typed(backend):
    """Some have no key, there are more of them than free keys, and some repeat."""
    chosen = task("edit")
    async with playing(backend, chosen) as environment:
        before = (await environment._outcome()).text("note.txt")
        assert before is not None
        text = "<a>&é€ß😀 ~|\\\"' 33 aa\n" + "".join(chr(0x4E00 + number) for number in range(150))
        await environment.step(Type(text), "type")
        await environment.step(Hotkey(("ctrl", "s")), "save")
        assert (await environment._outcome()).text("note.txt") == text + before


TAKES_KEYS = """
import time
from Xlib import X, display
x = display.Display()
screen = x.screen()
shape = 0, 0, 200, 100, 0, screen.root_depth
window = screen.root.create_window(*shape, background_pixel=screen.white_pixel, event_mask=X.KeyPressMask)
window.map()
"""
"""Begin of a program whose window takes keys."""
LATE = (
    TAKES_KEYS
    + """
taken = {}
while True:
    event = x.next_event()
    if event.type != X.KeyPress:
        continue
    end = time.monotonic() + (0 if taken else 1)
    while time.monotonic() < end:
        pass
    row = x.get_keyboard_mapping(event.detail, 1)[0]
    keysym = row[event.state & X.ShiftMask]
    if keysym < 0xFF00 or keysym >= 0x1000000:
        if time.monotonic() - taken.get(event.detail, 0) > 0.1:
            print(chr(keysym & 0xFFFFFF), end="", flush=True)
        taken[event.detail] = time.monotonic()
"""
)
"""Handles its first key late, as without a processor. Like galculator it ignores a key again within 0.1 s.
It reads a key's mapping when it handles the key."""


@pytest.mark.parametrize("text", ["3*34", "".join(chr(0x4E00 + number) for number in range(250))], ids=["same", "lent"])
async def test_no_key_is_lost_to_an_application_that_is_late(opened, text):
    session = {"command": ["/usr/bin/python3", "-c", LATE], "files": {}, "watched": []}
    await opened.sandbox.request("POST", "session", session)
    await opened.sandbox.request("POST", "step", {"id": "type", "events": [["text", text]]})
    assert (await opened._outcome()).output == text


async def test_no_repeated_key_is_lost_to_an_application_that_is_late(opened):
    """Keys that go down and up by name, as those of shortcuts and of pyautogui, are paced as those of a text."""
    session = {"command": ["/usr/bin/python3", "-c", LATE], "files": {}, "watched": []}
    await opened.sandbox.request("POST", "session", session)
    events = [[kind, key] for key in "aaba" for kind in ("down", "up")]
    await opened.sandbox.request("POST", "step", {"id": "type", "events": events})
    assert (await opened._outcome()).output == "aaba"


KEYS = (
    TAKES_KEYS
    + """
while True:
    event = x.next_event()
    if event.type == X.KeyPress:
        print(event.time / 1000, flush=True)
"""
)


async def test_a_key_repeats_only_when_it_is_held_for_longer_than_a_late_stroke(opened):
    session = {"command": ["/usr/bin/python3", "-c", KEYS], "files": {}, "watched": []}
    await opened.sandbox.request("POST", "session", session)
    await opened.sandbox.request("POST", "step", {"id": "hold", "events": [["down", "a"]]})

    async def repeats() -> bool:
        return len((await opened._outcome()).output.split()) > 2

    await until(repeats)
    first, second, *_ = map(float, (await opened._outcome()).output.split())
    assert second - first > 2.5, "by the clock of the X server"
    await opened.sandbox.request("POST", "step", {"id": "let go", "events": [["up", "a"]]})


MAPPINGS = (
    TAKES_KEYS
    + """
while True:
    event = x.next_event()
    if event.type in (X.KeyPress, X.MappingNotify):
        print("key" if event.type == X.KeyPress else "mapping", flush=True)
"""
)


async def test_a_first_key_does_not_change_the_keyboard_mapping(opened):
    """A window manager grabs its keys again after such a change, and a shortcut that comes meanwhile was lost."""
    session = {"command": ["/usr/bin/python3", "-c", MAPPINGS], "files": {}, "watched": []}
    await opened.sandbox.request("POST", "session", session)
    for number, key in enumerate(("t", "é")):
        events = [["down", "Control_L"], ["down", key], ["up", key], ["up", "Control_L"]]
        await opened.sandbox.request("POST", "step", {"id": f"{number}", "events": events})
    lines = (await opened._outcome()).output.split()
    assert lines == ["key"] * 2 + ["key", "mapping", "key"], "only a character without a key changes it"


SLOW = (
    TAKES_KEYS
    + """
while x.next_event().type != X.KeyPress:
    pass
with open("half", "w") as file:
    end = time.monotonic() + 7
    while time.monotonic() < end:
        window.change_attributes(background_pixel=int(time.monotonic() * 100) % 2 * screen.white_pixel)
        window.clear_area()
        x.sync()
        time.sleep(0.01)
    file.write("whole")
x.next_event()
"""
)
"""Draws for longer than a step waits for rest, and then finishes its file."""


async def test_a_desktop_that_still_works_is_evaluated_when_it_is_at_rest(opened):
    session = {"command": ["/usr/bin/python3", "-c", SLOW], "files": {}, "watched": ["half"]}
    await opened.sandbox.request("POST", "session", session)
    await opened.sandbox.request("POST", "step", {"id": "save", "events": [["text", "s"]]})
    assert (await opened._outcome()).text("half") == "whole"


async def test_the_keyboard_types_what_it_types_into_a_page(backend):
    chosen = task("edit")
    async with playing(backend, chosen) as environment:
        rows = [(Type("old"), Hotkey(("Control", "A")), Type("new\n"))]
        rows += [(*sequence, Hotkey(("end",)), Type("\n")) for sequence, _ in (*TYPED, *EDITED)]
        for number, action in enumerate(action for row in rows for action in row):
            await environment.step(action, f"{number}")
        await environment.step(Hotkey(("ctrl", "s")), "save")
        saved = (await environment._outcome()).text("note.txt")
        assert saved is not None
        assert saved.rstrip("\n").split("\n") == ["new", *(text for _, text in (*TYPED, *EDITED))]


async def test_a_program_receives_what_the_contract_says(opened):
    await opened.reset(task("answer"))
    session = {"command": ["/usr/bin/python3", "-c", ECHO], "files": {}, "watched": []}
    await opened.sandbox.request("POST", "session", session)
    read = 0

    async def received() -> list[list]:
        nonlocal read
        lines = (await opened._outcome()).output.splitlines()
        new, read = lines[read:], len(lines)
        return [json.loads(line) for line in new]

    opened.received = received
    assert await conformance.find_violations(opened) == []


async def test_what_is_held_is_released_at_the_end(backend):
    await check_held_ends(backend, task("edit"))


PROBE = """
import ctypes, json, os, socket
def attempt(action):
    try:
        return repr(action())
    except OSError as error:
        return type(error).__name__
libc = ctypes.CDLL(None, use_errno=True)
others = [int(name) for name in os.listdir("/proc") if name.isdecimal() and int(name) != os.getpid()]
servers = [pid for pid in others if b"dart_desktops.desktop.guest\\0" in open(f"/proc/{pid}/cmdline", "rb").read()]
print(json.dumps({
    "broker": attempt(lambda: socket.create_connection(("127.0.0.1", PORT), 2)),
    "route": attempt(lambda: socket.create_connection(("192.0.2.1", 80), 2)),
    "shadow": attempt(lambda: open("/etc/shadow").read()),
    "host file": attempt(lambda: open("HOST_FILE").read()),
    "root": sorted(os.listdir("/")),
    "write": attempt(lambda: open("/usr/new", "w")),
    "host pid": HOST_PID in others,
    "processes": len(others),
    "namespace": libc.unshare(0x10000000),
    "servers": servers,
    "server's files": attempt(lambda: os.listdir(f"/proc/{servers[0]}/fd")),
    "server's environment": attempt(lambda: open(f"/proc/{servers[0]}/environ").read()),
    "server's socket": libc.syscall(438, libc.syscall(434, servers[0], 0), 3, 0),
    "user": os.getuid(),
    "calls": [libc.syscall(n, 0, 0, 0, 0, 0) for n in (REFUSED)],
    "vsock": attempt(lambda: socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)),
    "packet": attempt(lambda: socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)),
}))
"""


async def test_nothing_of_the_host_is_within_reach(opened, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    secret.chmod(0o644)
    listener = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    refused = [numbers[list(CALLS).index(platform.machine())] for numbers in REFUSED.values()]
    probe = (
        PROBE.replace("REFUSED", ", ".join(map(str, refused)))
        .replace("PORT", str(port))
        .replace("HOST_FILE", str(secret))
        .replace("HOST_PID", str(os.getpid()))
    )
    found = json.loads(await run(opened, f"/usr/bin/python3 -c {shlex.quote(probe)}"))
    listener.close()
    assert found.pop("processes") < 20
    assert found == {
        "broker": "ConnectionRefusedError",
        "route": "OSError",
        "shadow": "FileNotFoundError",
        "host file": "FileNotFoundError",
        "root": ["bin", "dev", "etc", "home", "lib", "lib64", "opt", "proc", "run", "sbin", "tmp", "usr", "var"],
        "write": "OSError",
        "host pid": False,
        "namespace": -1,
        "servers": [1],
        "server's files": "PermissionError",
        "server's environment": "PermissionError",
        "server's socket": -1,
        "user": 1000,
        "calls": [-1] * len(refused),
        "vsock": "OSError",
        "packet": "OSError",
    }


async def test_a_session_leaves_nothing_to_the_next(opened):
    """A session leaves files in every writable folder, a daemon, properties of the display, and shared memory."""
    traces = "/tmp /run /var/tmp /dev/shm /home/user /run/user/1000"
    files = f"for f in {traces}; do echo left > $f/left; mkdir -p $f/.left/a; chmod 0 $f/.left $f; done"
    shared = "ipcmk -M 4096 -S 1 -Q"
    await run(opened, f"{files}; {shared}; setsid sleep 1000 & xprop -root -f LEFT 8s -set LEFT behind")
    look = f"ls -A {traces} | grep left; pgrep -x sleep; xprop -root LEFT | grep behind; tail -qn +2 /proc/sysvipc/*"
    assert await run(opened, look) == ""


def is_zombie_or(name: str, process: psutil.Process) -> bool:
    """Return whether a process has ended without having been collected, or is a program of this name."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_ZOMBIE or process.name() == name
    return False


async def test_children_that_lost_their_parents_do_not_stay(opened):
    """Each step reaps the children that have ended."""
    await run(opened, "for i in $(seq 50); do sh -c 'sleep 0.2 &'; done")
    assert opened.sandbox.process is not None
    sandbox, deadline = psutil.Process(opened.sandbox.process.pid), Deadline(BOUND_S)
    for number in itertools.count():
        await opened.sandbox.request("POST", "step", {"id": f"look-{number}", "events": []})
        left = [one for one in sandbox.children(recursive=True) if is_zombie_or("sleep", one)]
        if not left:
            break
        assert not deadline.expired, left
        await asyncio.sleep(0.1)


async def test_a_full_disk_is_empty_again_in_the_next_session(opened, backend):
    chosen = task("edit")
    for folder in ("/tmp", "/home/user", "/dev/shm"):
        filled = await run(opened, f"head -c 1G /dev/zero > {folder}/full; stat -c %s {folder}/full")
        assert 0 < int(filled) < 2**29, folder
    # There is the X server's memory, and the application's output.
    await run(opened, "head -c 1G /dev/zero > /run/full")
    await opened.reset(chosen)
    assert await conformance.solve(opened, chosen)
    assert await opened.evaluate() == 1


@pytest.mark.parametrize("part", ["Xvfb", "desktop.guest", "dbus-daemon", "openbox"])
async def test_a_part_that_is_killed_is_a_fault_and_the_slot_heals(backend, part):
    chosen = task("answer")
    async with playing(backend, chosen) as environment:
        await kill(inside(environment.sandbox, part))
        with pytest.raises(EnvironmentFault, match=r"ended|step|outcome"):
            await environment.step(Wait(), "wait")
            await environment.evaluate()
    assert environment.sandbox.process is not None
    assert environment.sandbox.process.returncode is not None
    async with playing(backend, chosen) as healed:
        assert await conformance.solve(healed, chosen)
        assert await healed.evaluate() == 1


async def test_an_application_that_is_killed_ends_the_episode_without_reward(backend):
    chosen = task("choose")
    async with playing(backend, chosen) as environment:
        await kill(inside(environment.sandbox, "zenity"))
        assert (await environment.step(Wait(), "wait")).done
        assert await environment.evaluate() == 0


@pytest.mark.parametrize(("family", "path"), [("edit", "note.txt"), ("remove", "files")])
async def test_a_watched_path_that_cannot_be_read_is_not_solved(backend, family, path):
    async with playing(backend, task(family)) as environment:

        async def execute(script: str) -> None:
            await environment.sandbox.request("POST", "osworld/execute", {"command": script, "shell": True})

        await check_spoiled(environment, execute, path)


@pytest.mark.parametrize("part", ["Xvfb", "desktop.guest"])
async def test_a_part_that_hangs_is_a_fault_in_bounded_time(part):
    own = DesktopBackend(config())
    chosen = task("answer")
    async with playing(own, chosen) as environment:
        # From here on nothing answers, however quick the machine is; before, it may take its time.
        environment.sandbox.call_timeout_s = 2.0
        inside(environment.sandbox, part).send_signal(signal.SIGSTOP)
        async with asyncio.timeout(BOUND_S):
            with pytest.raises(EnvironmentFault):
                await environment.step(Click(10, 10), "click")
    await own.stop()


async def test_a_fork_bomb_and_a_hoarder_do_not_reach_a_neighbor():
    own = DesktopBackend(config())
    chosen = task("answer")
    one, other = await own.open(chosen), await own.open(chosen)
    assert one.sandbox.group is not None
    if not one.sandbox.group.folders:
        await own.stop()
        pytest.skip("no control group may be made here: only folders are bounded")
    await other.reset(chosen)
    bomb = ":(){ :|:& };:"
    hoard = "python3 -c 'list(bytearray(2**24) for _ in range(1000))'"
    with pytest.raises(EnvironmentFault):
        await run(one, f"bash -c {shlex.quote(bomb)}\n{hoard}; false || exit 1", 20.0)
    assert await conformance.solve(other, chosen)
    assert await other.evaluate() == 1
    await one.close()
    await other.close()
    folders = [folder for environment in (one, other) for folder in environment.sandbox.group.folders]
    await own.stop()
    assert not any(folder.exists() for folder in folders)


HOARDERS = {
    "terminals": "import os, time; kept = [os.openpty() for _ in range(400)]; time.sleep(60)",
    "watches": """
import ctypes, time
libc = ctypes.CDLL(None)
while libc.inotify_init() >= 0:
    pass
open("/tmp/full", "w").close()
time.sleep(600)
""",
}
TAKES = {
    "terminals": "import os; os.openpty(); print('taken')",
    "watches": "import ctypes; print('taken' if ctypes.CDLL(None).inotify_init() >= 0 else 'none')",
}


@pytest.mark.parametrize("kind", HOARDERS)
async def test_one_desktop_does_not_take_what_the_kernel_counts_by_user(kind: str):
    if kind == "watches" and os.geteuid() != 0:
        pytest.skip("only a worker that is root can give each sandbox a user of its own")
    own = DesktopBackend(config())
    chosen = task("answer")
    one, other = await own.open(chosen), await own.open(chosen)
    await one.reset(chosen)
    await other.reset(chosen)
    until = "while [ ! -e /tmp/full ]; do sleep 0.1; done"
    hoard = run(one, f"ulimit -n 4096; /usr/bin/python3 -c {shlex.quote(HOARDERS[kind])} & {until}")
    if kind == "terminals":
        with pytest.raises(EnvironmentFault, match="more than 64 terminals"):
            await hoard
    else:
        await hoard
    assert (await run(other, f"/usr/bin/python3 -c {shlex.quote(TAKES[kind])}")).strip() == "taken"
    await one.close()
    await other.close()
    await own.stop()


MANAGER = """
import asyncio, structlog, sys; structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
from plugins.desktops.tests.test_desktop import DesktopBackend, config, task
async def main():
    backend = DesktopBackend(config())
    environment = await backend.open(task("answer"))
    await environment.reset(task("answer"))
    print(environment.sandbox.process.pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


def test_a_worker_that_is_killed_leaves_no_process():
    with subprocess.Popen([sys.executable, "-c", MANAGER], stdout=subprocess.PIPE, text=True) as manager:
        assert manager.stdout is not None
        tree = psutil.Process(int(manager.stdout.readline()))
        processes = [tree, *tree.children(recursive=True)]
        assert len(processes) > 5
        manager.kill()
    _, alive = psutil.wait_procs(processes, timeout=BOUND_S)
    assert alive == []


ODD_SIZE = 333, 222
"""Of these desktops only, so that what is left of them is found among all processes."""
ORPHAN = f"""
import asyncio, structlog, sys; structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
from dart_desktops.desktop import command_line, sandbox
made = command_line.command
command_line.command = lambda *given: [word for word in made(*given) if word != "--die-with-parent"]
async def main():
    await sandbox.Sandbox(*{ODD_SIZE}, 15.0).start()
    print(flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


def of_odd_size() -> list[psutil.Process]:
    """Return the processes of sandboxes with the odd size, bubblewrap's own among them."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cmdline()[-2:] == [str(pixels) for pixels in ODD_SIZE]:
                found.append(process)
    return found


def living(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Return the processes that do not end, and kill them."""
    _, alive = psutil.wait_procs(processes, timeout=BOUND_S)
    for process in alive:
        process.kill()
    return alive


def test_a_sandbox_ends_with_its_worker_though_bubblewrap_missed_its_death():
    with subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, text=True) as manager:
        assert manager.stdout is not None
        manager.stdout.readline()
        processes = of_odd_size()
        assert processes
        manager.kill()
    assert living(processes) == []


async def test_a_start_cancelled_before_its_process_is_known_leaves_nothing(monkeypatch):
    create, created, known = asyncio.create_subprocess_exec, asyncio.Event(), asyncio.Event()
    processes = []

    async def slowly(*arguments: Any, **keywords: Any) -> asyncio.subprocess.Process:
        processes.append(await create(*arguments, **keywords))
        created.set()
        await known.wait()
        return processes[0]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", slowly)
    sandbox = Sandbox(*ODD_SIZE, 15.0)
    starting = asyncio.create_task(sandbox.start())
    await created.wait()
    starting.cancel()
    asyncio.get_running_loop().call_soon(known.set)
    await asyncio.wait([starting])
    assert starting.cancelled()
    await sandbox.stop()
    assert living(of_odd_size()) == []


async def test_a_start_that_is_cancelled_at_any_time_leaves_nothing():
    for number in range(40):
        sandbox = Sandbox(*ODD_SIZE, 15.0)
        starting = asyncio.create_task(sandbox.start())
        await asyncio.wait([starting], timeout=0.003 * number)
        starting.cancel()
        await asyncio.wait([starting])
        await sandbox.stop()
        assert living(of_odd_size()) == [], f"cancelled after {3 * number} ms"


async def test_two_desktops_run_beside_each_other():
    own = DesktopBackend(config())

    async def play(family: str) -> float:
        chosen = task(family)
        async with playing(own, chosen) as environment:
            await conformance.solve(environment, chosen)
            reward = await environment.evaluate()
        return reward

    assert await asyncio.gather(*(play(family) for family in ("answer", "enter"))) == [1, 1]
    await own.stop()


async def test_a_missing_program_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(command_line, "PROGRAMS", ("bwrap", "no-such-program"))
    with pytest.raises(ServiceUnavailable, match="no-such-program: run `make desktop`"):
        await DesktopBackend(config()).start()


async def test_a_sandbox_that_does_not_come_up_says_why(monkeypatch):
    monkeypatch.setattr(command_line, "GUEST", command_line.PurePosixPath("/nowhere"))
    sandbox = Sandbox(320, 240, 5.0)
    with pytest.raises(EnvironmentFault, match="nowhere"):
        await sandbox.start()
    await sandbox.stop()
