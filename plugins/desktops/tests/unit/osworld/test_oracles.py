"""Solutions of single tasks: which task has one, what they change, and that they wait for facts."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from dart_desktops.osworld import oracles, pyautogui_programs, settling, tasks
from dart_desktops.osworld.machine import try_command
from dart_desktops.osworld.oracles import BEGIN_DOCUMENT, Solution, oracle_of, shell_solution
from dart_streams.actions import Hotkey, Type, Wait
from plugins.desktops.tests.unit.osworld.machines import LocalMachine
from plugins.desktops.tests.unit.osworld.parsed_tasks import comparison, parse_task
from tests.waiting import wait_until
from workers.env.environment import EnvironmentFault


def compared(app: str, metric: str, getter: str = tasks.CLOUD) -> tasks.OsworldTask:
    return parse_task(comparison(metric, "https://a.example/a", getter), app=app)


@pytest.mark.parametrize(
    ("task", "made", "found"),
    [
        (compared("libreoffice_calc", "compare_table"), True, BEGIN_DOCUMENT),
        (compared("libreoffice_writer", "compare_docx_files"), True, BEGIN_DOCUMENT),
        (compared("libreoffice_calc", "compare_table"), False, None),
        (compared("libreoffice_impress", "compare_table"), True, None),
        (compared("libreoffice_calc", "compare_csv"), True, None),
        (compared("libreoffice_calc", "compare_table", "rule"), True, None),
    ],
)
def test_placeholder_documents_share_one_solution(task, made, found):
    assert oracle_of(task, made) is found


def test_a_task_with_a_solution_of_its_own_has_it_whatever_its_files():
    name = next(iter(oracles.ORACLES))
    assert oracle_of(parse_task(task_id=name), made=False) is oracles.ORACLES[name]


def write_document(home: Path, opened_s: float, saved_s: float) -> None:
    """Write a document and LibreOffice's lock of it, with the times of their last changes."""
    for name, time_s in ((".~lock.Pears.xlsx#", opened_s), ("Pears.xlsx", saved_s)):
        (home / name).touch()
        os.utime(home / name, (time_s, time_s))


async def test_keys_are_pressed_one_after_the_other_each_at_rest(tmp_path):
    machine = LocalMachine(tmp_path)
    write_document(tmp_path, opened_s=10, saved_s=20)
    await BEGIN_DOCUMENT.solve(machine)
    pressed = [command[2] for command in machine.programs if command[0] == "python"]
    assert [line.splitlines()[-1].removeprefix("pyautogui.") for line in pressed] == [
        "hotkey('ctrl', 'home')",
        "typewrite('Pear')",
        "hotkey('enter')",
        "hotkey('ctrl', 's')",
        "hotkey('enter')",
    ]
    assert [command[0] == "python" for command in machine.programs] == [False, True] * 5 + [False]


@pytest.mark.parametrize("oracle", [shell_solution("exit 3"), BEGIN_DOCUMENT])
async def test_a_solution_that_fails_is_a_fault_with_its_step(tmp_path, oracle):
    machine = LocalMachine(tmp_path)
    machine.returncode = 1
    with pytest.raises(EnvironmentFault):
        await oracle.solve(machine)


async def test_a_solution_on_a_machine_that_is_never_at_rest_is_a_fault(tmp_path):
    machine = LocalMachine(tmp_path)
    machine.output = ""
    with pytest.raises(EnvironmentFault, match=r"before the oracle's Hotkey.*still computes after 60 s"):
        await BEGIN_DOCUMENT.solve(machine)


async def test_a_solution_without_its_effect_is_a_fault_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(oracles, "EFFECT_S", 0.0)
    machine = LocalMachine(tmp_path)
    with pytest.raises(EnvironmentFault, match=r"no effect .*-newer.* within 0 s"):
        await BEGIN_DOCUMENT.solve(machine)
    shown = [action async for action in Solution(effect="true").demonstrate(AsyncMock(return_value=True))]
    assert shown == []
    with pytest.raises(EnvironmentFault, match="no effect"):
        assert [action async for action in BEGIN_DOCUMENT.demonstrate(AsyncMock(return_value=False))]


@pytest.mark.parametrize(("opened_s", "saved_s", "expected"), [(10, 20, True), (20, 10, False), (20, 20, False)])
async def test_a_document_is_saved_once_it_is_newer_than_its_lock(tmp_path, opened_s, saved_s, expected):
    machine = LocalMachine(tmp_path)
    assert not await try_command(machine, oracles.SAVED)
    write_document(tmp_path, opened_s, saved_s)
    assert await try_command(machine, oracles.SAVED) == expected


async def test_commands_are_typed_into_a_terminal_that_closes_if_all_succeed(monkeypatch):
    monkeypatch.setattr(settling, "POLL_INTERVAL_S", 0.0)
    holds = AsyncMock(side_effect=[*[False] * 50, True, *[True] * 50, False])
    found = [action async for action in shell_solution("a", "b; c").demonstrate(holds)]
    assert found == [oracles.TERMINAL, Wait(), Type("a && b; c && exit\n"), Wait()]
    assert {call.args for call in holds.await_args_list} == {(oracles.HAS_TERMINAL,)}


async def test_a_terminal_that_is_there_at_once_needs_no_pause():
    holds = AsyncMock(side_effect=[True, False])
    found = [action async for action in shell_solution("a").demonstrate(holds)]
    assert found == [oracles.TERMINAL, Type("a && exit\n")]


@pytest.mark.parametrize(("opens", "reason"), [(False, "does not open within 0 s"), (True, "do not end within 0 s")])
async def test_a_terminal_that_does_not_open_or_close_is_a_fault(monkeypatch, opens, reason):
    monkeypatch.setattr(oracles, "OPEN_S", 0.0)
    monkeypatch.setattr(oracles, "COMMANDS_S", 0.0)
    with pytest.raises(EnvironmentFault, match=reason):
        assert [action async for action in shell_solution("a").demonstrate(AsyncMock(return_value=opens))]


async def test_what_is_demonstrated_in_an_application_is_what_is_checked():
    holds = AsyncMock(return_value=True)
    found = [action async for action in BEGIN_DOCUMENT.demonstrate(holds)]
    assert found == list(BEGIN_DOCUMENT.actions)
    assert all(pyautogui_programs.build_program(action) for action in found)
    holds.assert_awaited_once_with(oracles.SAVED)


AT_ONCE = "signal.SIG_DFL"
LATE = "lambda *_: signal.alarm(1)"
NEVER = "signal.SIG_IGN"
"""What a program does when it is asked to end; the alarm ends it."""
PROGRAM = """#!{python}
import pathlib, signal, sys
signal.signal(signal.SIGTERM, eval(sys.argv[1]))
pathlib.Path(sys.argv[2]).touch()
while True:
    signal.pause()
"""


@pytest.fixture
def start_programs(tmp_path: Path) -> Iterator[Callable[..., list[subprocess.Popen[bytes]]]]:
    """Start processes of one name that end as each is asked to; none is collected when it ends."""
    programs: list[subprocess.Popen[bytes]] = []
    file = tmp_path / f"late-{os.getpid():07d}"
    file.write_text(PROGRAM.format(python=sys.executable))
    file.chmod(0o755)

    def start(*ends: str) -> list[subprocess.Popen[bytes]]:
        for number, end in enumerate(ends):
            ready = tmp_path / f"ready-{number}"
            programs.append(subprocess.Popen([file, end, ready]))
            wait_until(ready.exists)
        return programs

    yield start
    for program in programs:
        program.kill()
        program.wait()


def end_programs() -> subprocess.CompletedProcess[str]:
    command = oracles.end_program(f"late-{os.getpid():07d}")
    return subprocess.run(command, shell=True, capture_output=True, text=True, check=False)


needs_pidwait = pytest.mark.skipif(shutil.which("pidwait") is None, reason="needs pidwait of procps")


@needs_pidwait
@pytest.mark.parametrize("ends", [(), (AT_ONCE,), (LATE,), (AT_ONCE, LATE)])
def test_all_processes_of_a_program_have_ended_before_the_next_command(start_programs, ends):
    programs = start_programs(*ends)
    assert (end_programs().returncode, [program.poll() is None for program in programs]) == (0, [False] * len(ends))


@needs_pidwait
def test_a_program_that_does_not_end_is_named(start_programs, monkeypatch):
    monkeypatch.setattr(oracles, "END_S", 1)
    programs = start_programs(AT_ONCE, NEVER)
    ended = end_programs()
    assert (ended.returncode, ended.stderr) == (1, f"late-{os.getpid():07d} does not end within 1 s\n")
    assert programs[1].poll() is None


SLEEPS = re.compile(r"\b\w*sleep\b|\bread\b.* -t|\btail -f /dev/null")
ENDS = re.compile(r"\b(pkill|killall|kill|xkill)\b")


def timed_waits(solution: Solution) -> list[str]:
    """Return the parts of a solution that wait for a time instead of a fact."""
    typed = [action.content for action in solution.actions if isinstance(action, Type)]
    found = [str(action) for action in solution.actions if isinstance(action, Wait)]
    for text in (*solution.commands, solution.effect, *typed):
        if SLEEPS.search(text) or (ENDS.search(text) and not re.search(r"\btimeout \d+ .*\bpidwait\b", text)):
            found.append(text)
    return found


def called_name(node: ast.AST) -> str:
    """Return the last name of a call's function, empty for any other node."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def counted_waits(source: str) -> list[int]:
    """Return the lines of Python that sleep, or that repeat a waiting step."""
    tree = ast.parse(source)
    repeated: Iterable[ast.AST] = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.For | ast.AsyncFor | ast.While | ast.comprehension | ast.ListComp | ast.GeneratorExp)
        or (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult))
    )
    waits = {inner.lineno for node in repeated for inner in ast.walk(node) if called_name(inner) == "Wait"}
    return sorted(waits | {node.lineno for node in ast.walk(tree) if called_name(node) == "sleep"})


def test_no_solution_waits_for_seconds_or_for_a_number_of_steps():
    found = {name: timed_waits(oracle) for name, oracle in {**oracles.ORACLES, "": BEGIN_DOCUMENT}.items()}
    assert {name: waits for name, waits in found.items() if waits} == {}
    assert counted_waits(Path(oracles.__file__).read_text()) == []


@pytest.mark.parametrize(
    "solution",
    [
        shell_solution("pkill vlc; sleep 1; true"),
        shell_solution("pkill vlc", "echo key >>file"),
        shell_solution("pkill vlc; pidwait vlc"),
        shell_solution("python3 -c 'import time; time.sleep(2)'"),
        shell_solution("read -r -t 5"),
        Solution((Hotkey(("ctrl", "s")), Wait())),
        Solution((Type("xsleep 5\n"),)),
        Solution(effect="sleep 3; true"),
    ],
)
def test_each_kind_of_timed_wait_is_found(solution):
    assert len(timed_waits(solution)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "for _ in range(20):\n    yield Wait()",
        "while count < 20:\n    yield actions.Wait()",
        "steps = [Wait()] * 5",
        "steps = [Wait() for _ in range(5)]",
        "await asyncio.sleep(2)",
        "time.sleep(2)",
    ],
)
def test_each_kind_of_counted_wait_is_found(source):
    assert len(counted_waits(source)) == 1


async def solved(folder: Path, name: str, path: str, content: str) -> str:
    """Return what a solution makes of a file of the home's settings."""
    file = folder / ".config" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    await oracles.ORACLES[name].solve(LocalMachine(folder))
    return file.read_text()


@pytest.mark.parametrize(
    ("name", "path", "before", "after"),
    [
        (
            "9195653c-f4aa-453d-aa95-787f6ccfaae9",
            "vlc/vlcrc",
            "[core]\nqt-max-volume=125\nother=1\n",
            "[core]\nother=1\nqt-max-volume=200\n",
        ),
        ("7b7617bd-57cc-468e-9c91-40c4ec2bcb3d", "GIMP/2.10/gimprc", "# gimp\n", "# gimp\n(undo-levels 100)\n"),
    ],
)
async def test_a_setting_of_a_line_replaces_the_one_before(tmp_path, name, path, before, after):
    assert await solved(tmp_path, name, path, before) == after


VLC_OPTIONS = {
    *("input-record-path", "one-instance-when-started-from-file", "qt-bgcone", "qt-max-volume", "qt-minimal-view"),
    *("play-and-exit", "qt-slider-colours"),
}
"""Options of VLC, in its own spelling."""


def test_settings_of_vlc_are_spelled_as_in_vlc():
    commands = [oracle.commands[-1] for oracle in oracles.ORACLES.values() if oracle.commands]
    assert {name for line in commands for name in re.findall(r"echo '([\w-]+)=.*/vlcrc$", line)} == VLC_OPTIONS


async def test_a_setting_of_the_browser_keeps_the_others(tmp_path):
    name, path = "af630914-714e-4a24-a7bb-f9af687d3b91", "google-chrome/Default/Preferences"
    found = json.loads(await solved(tmp_path, name, path, '{"profile": {"name": "a"}}'))
    assert found == {"profile": {"name": "a"}, "webkit": {"webprefs": {"default_font_size": 24}}}


async def test_a_setting_of_libreoffice_is_an_item_of_its_registry(tmp_path):
    name, path = "2cd43775-7085-45d8-89fa-9e35c0a915cf", "libreoffice/4/user/registrymodifications.xcu"
    before = "<oor:items>\n<item>AutoSaveTimeIntervall old</item>\n</oor:items>\n"
    found = await solved(tmp_path, name, path, before)
    assert "<value>3</value>" in found
    assert "old" not in found
    assert found.count("</oor:items>") == 1
