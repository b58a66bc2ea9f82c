"""The supervisor on real processes: restarts, giving up, draining, and leaving nothing behind."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import AsyncMock

import msgspec
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.launch import process_registry as leftovers
from console.launch import supervisor as supervisor_module
from console.launch.services.daemon import Birth, birth_of
from console.launch.supervisor import (
    MAX_DELAY_S,
    MAX_QUICK_DEATHS,
    MIN_LIFE_S,
    ProcessFailedError,
    ProcessSpec,
    Supervisor,
    after_death,
    explain,
)
from console.runs import run_folder
from tests import waiting

SLEEPS = (sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)")
STUBBORN = (
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)",
)
# Starts a grandchild in a session of its own, as a browser is started, and writes its number.
PARENT = (
    sys.executable,
    "-c",
    "import subprocess, sys, time\n"
    "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
    "print('grandchild', p.pid, flush=True)\n"
    "time.sleep(600)",
)


async def until(condition):
    return await waiting.until(AsyncMock(side_effect=condition))


@contextlib.asynccontextmanager
async def supervised(folder: Path, *specs: ProcessSpec, drain_s: float = 60, **settings):
    """Yield a supervisor of these processes, and stop them at the end."""
    supervisor = Supervisor(folder, drain_s, **settings)
    await supervisor.start(specs)
    yield supervisor
    await supervisor.stop_all()


def python(name: str, code: str, **settings) -> ProcessSpec:
    return ProcessSpec(name, (sys.executable, "-c", code), **settings)


def log_of(folder: Path, name: str) -> str:
    path = folder / "logs" / f"{name}.log"
    return path.read_text() if path.exists() else ""


def grandchild(folder: Path, name: str) -> psutil.Process | None:
    words = log_of(folder, name).split()
    return psutil.Process(int(words[1])) if len(words) > 1 else None


def gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def test_a_process_stays_alive_while_the_list_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor_module, "SAVE_RETRY_S", 0.05)
    async with supervised(tmp_path, ProcessSpec("env-0", SLEEPS)) as supervisor:
        child = supervisor.children["env-0"]
        supervisor.registry_file = tmp_path / "away" / "processes.json"
        for starts in (2, 3):
            psutil.Process(child.process.pid).kill()
            await until(lambda starts=starts: child.starts == starts and child.process.returncode is None)
        supervisor.registry_file.parent.mkdir()
        await until(supervisor.registry_file.exists)
        assert [one.pid for one in leftovers.read(supervisor.registry_file).children] == [child.process.pid]


@pytest.mark.parametrize("first", [True, False])
async def test_a_start_that_fails_is_tried_again_as_a_death_is(tmp_path, monkeypatch, first):
    """At its limit of processes or files, or on a full disk, a run ended with a traceback."""
    monkeypatch.setattr(supervisor_module, "FIRST_DELAY_S", 0.01)
    notices: list[str] = []
    logs = tmp_path / "logs"
    supervisor = Supervisor(tmp_path, 60, notices.append)
    if first:
        logs.rename(tmp_path / "away")
    await supervisor.start([ProcessSpec("env-0", SLEEPS)])
    child = supervisor.children["env-0"]
    if not first:
        await until(lambda: "up" in log_of(tmp_path, "env-0"))
        logs.rename(tmp_path / "away")
        psutil.Process(child.process.pid).kill()
    await until(lambda: any("env-0 not started" in notice and "No such file" in notice for notice in notices))
    (tmp_path / "away").rename(logs)
    await until(lambda: child.process is not None and log_of(tmp_path, "env-0").count("up") == child.starts)
    assert not supervisor.gave_up.done()
    await supervisor.stop_all()


async def test_starts_that_keep_failing_fail_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor_module, "FIRST_DELAY_S", 0.01)
    supervisor = Supervisor(tmp_path, 60)
    (tmp_path / "logs").rmdir()
    await supervisor.start([ProcessSpec("env-0", SLEEPS)])
    with pytest.raises(ProcessFailedError, match="env-0 died 5 times in a row: not started"):
        await asyncio.wait_for(supervisor.gave_up, 60)
    await supervisor.stop_all()


async def test_a_dead_process_is_started_again(tmp_path):
    async with supervised(tmp_path, ProcessSpec("env-0", SLEEPS)) as supervisor:
        await until(lambda: "up" in log_of(tmp_path, "env-0"))
        child = supervisor.children["env-0"]
        psutil.Process(child.process.pid).children()[0].kill()
        await until(lambda: log_of(tmp_path, "env-0").count("up") == child.starts == 2)
    assert supervisor.children == {}


async def test_quick_deaths_end_the_run_with_the_end_of_the_log(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor_module, "FIRST_DELAY_S", 0.01)
    deaths: list[tuple[str, str, str, bool]] = []
    notices: list[str] = []
    spec = python("curator", "raise SystemExit('the broker said no')")
    async with supervised(tmp_path, spec, notify=notices.append) as supervisor:
        supervisor.on_death = lambda *death: deaths.append(death)
        with pytest.raises(ProcessFailedError, match=r"(?s)curator died 5 times in a row: exit code 1.*broker said no"):
            await asyncio.wait_for(supervisor.gave_up, 120)
    died = ("curator", "exit code 1", "the broker said no")
    assert deaths == [(*died, True)] * 4 + [(*died, False)]
    assert all("the last line of its log: the broker said no" in notice for notice in notices)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ((sys.executable, "-c", "import sys; sys.exit(2)"), "env-0 died: exit code 2"),
        (("/no/such/program",), "cannot start /no/such/program"),
    ],
)
async def test_an_error_of_the_user_and_a_missing_command_are_named(tmp_path, monkeypatch, command, words):
    monkeypatch.setattr(supervisor_module, "FIRST_DELAY_S", 0.01)
    async with supervised(tmp_path, ProcessSpec("env-0", command)) as supervisor:
        with pytest.raises(ProcessFailedError, match=words):
            await asyncio.wait_for(supervisor.gave_up, 120)


async def test_what_does_not_drain_is_killed_in_time(tmp_path, monkeypatch):
    """By its subreaper: the supervisor, which kills that one if it is late, has not come to it yet."""
    monkeypatch.setattr(supervisor_module, "KILL_MARGIN_S", 60.0)
    others = set(psutil.Process().children())  # multiprocessing keeps a process of its own once it was used
    async with supervised(tmp_path, ProcessSpec("env-0", STUBBORN), drain_s=0.5) as supervisor:
        await until(lambda: "up" in log_of(tmp_path, "env-0"))
        begin = time.monotonic()
        await asyncio.wait_for(supervisor.stop_all(), 60)
    assert time.monotonic() - begin >= 0.5
    await until(lambda: set(psutil.Process().children()) <= others)


async def test_what_takes_down_what_others_tell_ends_after_them(tmp_path):
    """Each looks on its way out whether the other is still there."""
    leaves = """
import os, signal, sys
from pathlib import Path
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
mine, other = (Path(sys.argv[1], name) for name in sys.argv[2:])
mine.touch()
print("up", flush=True)
signal.sigwait({signal.SIGTERM})
print("other is there:", other.exists(), flush=True)
mine.unlink()
"""

    def spec(mine: str, other: str, last: bool) -> ProcessSpec:
        return ProcessSpec(mine, (sys.executable, "-c", leaves, str(tmp_path), mine, other), last=last)

    specs = [spec("recorder-0", "env-0", True), spec("env-0", "recorder-0", False)]
    async with supervised(tmp_path, *specs):
        await until(lambda: all("up" in log_of(tmp_path, one.name) for one in specs))
    assert "other is there: True" in log_of(tmp_path, "env-0")
    assert "other is there: False" in log_of(tmp_path, "recorder-0")


async def test_a_second_signal_kills_at_once(tmp_path):
    async with supervised(tmp_path, ProcessSpec("env-0", STUBBORN), drain_s=600) as supervisor:
        await until(lambda: "up" in log_of(tmp_path, "env-0"))
        stopping = asyncio.create_task(supervisor.stop_all())
        await asyncio.sleep(0)
        supervisor.kill_all()
        await asyncio.wait_for(stopping, 60)


@pytest.mark.parametrize("killed", [False, True])
async def test_grandchildren_in_sessions_of_their_own_end_with_the_process(tmp_path, killed):
    async with supervised(tmp_path, ProcessSpec("env-0", PARENT)) as supervisor:
        orphan = await until(lambda: grandchild(tmp_path, "env-0"))
        if killed:
            psutil.Process(supervisor.children["env-0"].process.pid).children()[0].kill()
            await until(lambda: gone(orphan))
    await until(lambda: gone(orphan))


SUPERVISOR = """
import asyncio, sys
from pathlib import Path
from console.launch.supervisor import ProcessSpec, Supervisor

async def main():
    supervisor = Supervisor(Path(sys.argv[1]), drain_s=1)
    await supervisor.start([ProcessSpec("env-0", tuple(sys.argv[2:]))])
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_kill_9_of_the_supervisor_leaves_no_orphan(tmp_path):
    supervisor = subprocess.Popen([sys.executable, "-c", SUPERVISOR, str(tmp_path), *PARENT])
    try:
        orphan = asyncio.run(until(lambda: grandchild(tmp_path, "env-0")))
        below = psutil.Process(supervisor.pid).children(recursive=True)
        assert len(below) == 3, "subreaper, worker, grandchild"
    finally:
        supervisor.kill()
        supervisor.wait()
    asyncio.run(until(lambda: all(gone(process) for process in (*below, orphan))))


NOBODY = leftovers.ProcessIdentity("supervisor", 2**22 - 1, 0.0, ())


def register(folder: Path, supervisor: leftovers.ProcessIdentity, *children: leftovers.ProcessIdentity) -> Path:
    """Write the registry of a run that started the services."""
    folder.mkdir()
    run_folder.write_json(folder / "processes.json", leftovers.ProcessRegistry(supervisor, children, services=True))
    return folder


def test_leftovers_of_a_killed_run_are_ended(tmp_path):
    process = subprocess.Popen(SLEEPS, stdout=subprocess.DEVNULL)
    register(tmp_path / "run-1", NOBODY, leftovers.ProcessIdentity.of("env-0", process.pid))
    assert leftovers.end_leftovers(tmp_path) == (["run-1/env-0"], ("kafka", "cassandra"))
    assert not psutil.pid_exists(process.pid)
    assert leftovers.end_leftovers(tmp_path) == ([], ())


def test_a_process_is_known_again_in_its_exec_and_from_an_earlier_list(tmp_path):
    me = leftovers.this_process()
    assert msgspec.structs.replace(me, command=()).process() is not None
    assert msgspec.structs.replace(me, command=("other",)).process() is None
    assert msgspec.structs.replace(me, command=(), started_s=me.started_s - 100, born=None).process() is None
    for other in (Birth("another-boot", me.born.ticks), Birth(me.born.boot, me.born.ticks + 1)):
        assert msgspec.structs.replace(me, born=other).process() is None
    kept = {"name": "supervisor", "pid": me.pid, "started_s": me.started_s, "command": me.command}
    (tmp_path / "processes.json").write_bytes(msgspec.json.encode({"supervisor": kept}))
    registry = leftovers.read(tmp_path / "processes.json")
    assert registry.supervisor.process() is not None
    born = birth_of(os.getpid())
    assert 0 <= born.age_s <= float(Path("/proc/uptime").read_text().split()[0])
    assert birth_of(2**22 - 1) is None


@pytest.mark.parametrize("step_s", [-7200.0, -5.0, 5.0, 1200.0])
def test_a_step_of_the_clock_makes_no_living_run_a_dead_one(tmp_path, step_s):
    """A wall clock that was stepped moves the creation times of all processes."""
    me = leftovers.this_process()
    before = msgspec.structs.replace(me, started_s=me.started_s + step_s)
    register(tmp_path / "run-1", before, before)
    assert leftovers.end_leftovers(tmp_path) == ([], ())
    assert leftovers.living_runs(tmp_path, but=tmp_path / "other") == ["run-1"]


def test_a_run_whose_folder_is_held_lives(tmp_path):
    """So it is in another container with the same folder."""
    with run_folder.lock_folder(register(tmp_path / "run-1", NOBODY)):
        assert leftovers.end_leftovers(tmp_path) == ([], ())
        assert leftovers.living_runs(tmp_path, but=tmp_path / "other") == ["run-1"]
    assert leftovers.living_runs(tmp_path, but=tmp_path / "other") == []
    assert leftovers.end_leftovers(tmp_path) == ([], ("kafka", "cassandra"))


def test_services_of_a_killed_run_are_those_that_it_started(tmp_path):
    for name, services in (("run-1", ("cassandra",)), ("run-2", ()), ("run-3", False)):
        folder = register(tmp_path / name, NOBODY)
        run_folder.write_json(folder / "processes.json", leftovers.ProcessRegistry(NOBODY, services=services))
    assert leftovers.end_leftovers(tmp_path) == ([], ("cassandra",))


def test_processes_of_a_living_run_or_of_strangers_are_left_alone(tmp_path):
    me = leftovers.this_process()
    register(tmp_path / "living", me, me)
    someone_else = leftovers.ProcessIdentity("env-0", os.getpid(), me.started_s - 100, me.command)
    register(tmp_path / "stranger", NOBODY, someone_else)
    assert leftovers.end_leftovers(tmp_path) == ([], ("kafka", "cassandra"))


@given(st.lists(st.floats(0, MIN_LIFE_S, exclude_max=True), min_size=MAX_QUICK_DEATHS, max_size=MAX_QUICK_DEATHS))
def test_delays_double_until_giving_up(lives):
    deaths, delays = 0, []
    for lived_s in lives:
        deaths, delay_s = after_death(deaths, lived_s, 1)
        delays.append(delay_s)
    assert delays == [0.5, 1.0, 2.0, 4.0, None]


def test_a_long_life_forgives():
    assert after_death(4, MIN_LIFE_S, 1) == (1, 0.5)
    assert after_death(3, 0, 1)[1] <= MAX_DELAY_S


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "ended by itself (exit code 0)"),
        (3, "exit code 3"),
        (137, "killed by SIGKILL"),
        (-9, "killed by SIGKILL"),
        (255, "exit code 255"),
    ],
)
def test_an_exit_code_is_explained(code, words):
    assert explain(code) == words


async def test_the_run_goes_on_without_an_optional_process_that_keeps_dying(tmp_path):
    notices: list[str] = []
    specs = [python("ui", "import sys; sys.exit(2)", optional=True), ProcessSpec("other", SLEEPS)]
    async with supervised(tmp_path, *specs, notify=notices.append) as supervisor:
        await until(lambda: any("goes on without ui" in text for text in notices))
        assert not supervisor.gave_up.done()
        assert supervisor.children["other"].process.returncode is None


FORKED_SLOWLY = """
import os, signal, time; from console.launch import subreaper
wake, fork = subreaper.catch_signals(), os.fork
os.fork = lambda: fork() or time.sleep(1) or 0
os.kill(os.getpid(), signal.SIGTERM)
print(subreaper.run_command(["sleep", "600"], 600.0, wake))
"""


def test_a_signal_that_a_new_child_gets_is_no_second_one_for_its_subreaper():
    command, pipes = [sys.executable, "-c", FORKED_SLOWLY], {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        assert process.stdout.read() == f"({128 + signal.SIGTERM}, True)\n"
