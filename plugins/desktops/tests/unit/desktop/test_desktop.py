"""The desktop's pure parts: events of actions, tasks of seeds, the sandbox's command, keys, states of processes."""

import itertools
import os
import re
import string
import subprocess
import sys
import textwrap
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_desktops.desktop import command_line, limits, sandbox
from dart_desktops.desktop.families import FAMILIES, problem_of
from dart_desktops.desktop.guest import keyboard, processes
from dart_desktops.desktop.inputs import input_events
from dart_desktops.desktop.problem import Element, MissingElement, SessionOutcome, find
from dart_streams import actions
from tests.sources import ROOT
from workers.env.environment import EnvironmentFault


def test_what_an_action_presses_it_releases_in_reverse():
    assert input_events(actions.Hotkey(("ctrl", "shift", "t"))) == [
        *(["down", key] for key in ("Control_L", "Shift_L", "t")),
        *(["up", key] for key in ("t", "Shift_L", "Control_L")),
    ]
    assert input_events(actions.Hotkey(("no such key", "Return"))) == [["down", "Return"], ["up", "Return"]]
    assert input_events(actions.Hotkey(("?",))) == [["text", "?"]]
    assert input_events(actions.KeyDown("shift")) == [["down", "Shift_L"]]
    assert input_events(actions.Wait()) == input_events(actions.Finished()) == input_events(actions.Type("")) == []


@given(st.sampled_from(sorted(FAMILIES)), st.integers(0, 10**6))
def test_a_problem_is_that_of_its_seed(family, seed):
    problem, again = problem_of(family, seed), problem_of(family, seed)
    assert (problem.instruction, problem.session((320, 240))) == (again.instruction, again.session((320, 240)))
    assert msgspec.json.decode(msgspec.json.encode(problem.session((320, 240))))["command"] == list(problem.command)
    untouched = {path: [] if "." not in path else None for path in problem.watched}
    assert not problem.solved(SessionOutcome(None, "", untouched), [])


@pytest.mark.parametrize("family", FAMILIES)
def test_seeds_give_different_problems(family):
    assert len({problem_of(family, seed).instruction for seed in range(40)}) >= 8


def test_an_unknown_family_is_a_fault_that_names_the_known():
    with pytest.raises(EnvironmentFault, match="answer, choose"):
        problem_of("fly", 0)


def test_elements_are_found_as_one_reads():
    low = Element("text", "", "", [], (10, 90, 20, 10))
    high = Element("text", "", "", [], (50, 20, 20, 10))
    assert find([low, high], "text") is high
    assert find([low, high], "text", number=1).click() == actions.Click(20, 95)
    with pytest.raises(MissingElement, match="push button 'OK'"):
        find([low], "push button", "OK")


def test_a_sandbox_has_of_the_host_programs_to_read_and_nothing_to_write():
    command = command_line.command({"/opt/file": 7}, 64, 8)
    binds = {option: [] for option in ("--ro-bind", "--ro-bind-try", "--bind", "--dev-bind", "--bind-try")}
    for place, argument in enumerate(command):
        if argument in binds:
            binds[argument].append(command[place + 1])
    assert binds["--bind"] == binds["--dev-bind"] == binds["--bind-try"] == []
    usr, *hidden = binds["--ro-bind"]
    assert (usr, set(hidden) - {"/dev/null"}) == ("/usr", set()), "an empty device is put over what is hidden"
    secret = {"/etc/shadow", "/etc/passwd", "/etc/ssh", "/etc/ssl", "/etc/ssl/private", "/etc", "/root", "/home"}
    assert not secret & set(binds["--ro-bind-try"])
    assert {"--unshare-net", "--unshare-pid", "--unshare-ipc", "--unshare-user", "--clearenv"} <= set(command)
    assert command[command.index("--seccomp") + 1] == "8"
    assert command[command.index("/tmp") - 2 : command.index("/tmp")] == [str(64 * 2**20), "--tmpfs"]


@pytest.mark.parametrize("installed", [True, False])
def test_the_browser_s_file_is_chrome_with_its_resources_beside_it(tmp_path, monkeypatch, installed):
    folder = tmp_path / "chromium"
    if installed:
        (folder / "locales").mkdir(parents=True)
        (folder / "chromium").touch()
    monkeypatch.setattr(command_line, "CHROMIUM", folder)
    names = ["chromium", "locales"] if installed else []
    links = [word for name in names for word in ("--symlink", str(folder / name), f"/opt/google/chrome/{name}")]
    assert command_line.browser_arguments() == [
        *("--ro-bind-try", str(folder / "chromium"), "/opt/google/chrome/chrome"),
        *links,
        *("--symlink", "/opt/google/chrome/chrome", "/opt/bin/chrome"),
    ]


def test_packages_of_agents_are_bound_to_read_if_the_desktops_user_may(tmp_path, monkeypatch):
    folder = tmp_path / "environment/lib/python3.11/site-packages"
    folder.mkdir(parents=True)
    command = command_line.command({}, 64, 8, str(folder))
    assert command[command.index(str(folder)) - 1 : command.index(str(folder)) + 2] == [
        "--ro-bind",
        str(folder),
        "/opt/packages",
    ]
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert sandbox.further_packages.__wrapped__(tmp_path / "environment") == str(folder)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    (tmp_path / "environment").chmod(0o700)
    assert sandbox.further_packages.__wrapped__(tmp_path / "environment") == ""
    assert sandbox.further_packages.__wrapped__(tmp_path / "none") == ""


def test_the_set_up_installs_each_program_that_is_required():
    installed = re.search(r"missing_desktop\(\) \{(.*?)\n\}", (ROOT / "deploy/local/setup.sh").read_text(), re.DOTALL)
    assert installed is not None
    assert set(command_line.PROGRAMS) <= set(re.findall(r"[\w-]+(?=:[\w-]+)", installed[1]))


@given(st.text(min_size=1, max_size=60))
def test_a_text_is_typed_with_codes_that_keep_their_meaning(text):
    """However few codes are free: those of one part all differ, and each means its character."""
    letters = [[ord(small), ord(small.upper())] for small in string.ascii_lowercase]
    lent: dict[int, int] = {}
    mapped = keyboard.Keymap([*letters, [0, 0], [0, 0], [0, 0]], lent.__setitem__)
    rest = text
    while rest:
        count = mapped.lend(rest)
        assert count > 0
        known = dict(lent)
        for character in rest[:count]:
            code, shifted = mapped.codes[keyboard.keysym_of(character)]
            means = known[code] if code in known else letters[code - keyboard.FIRST_CODE][shifted]
            assert means == keyboard.keysym_of(character)
        rest = rest[count:]


@pytest.mark.parametrize(
    ("character", "keysym"),
    [("a", 0x61), ("<", 0x3C), ("é", 0xE9), ("€", 0x010020AC), ("\n", 0xFF0D), ("😀", 0x0101F600)],
)
def test_keysyms_of_characters(character, keysym):
    assert keyboard.keysym_of(character) == keysym


def test_the_state_of_a_process_whose_name_has_parentheses(tmp_path: Path):
    assert processes.thread_state("12 (a) S (b) R 1 12 12 0") == "R"
    for pid, letter in ((7, "S"), (8, "D")):
        (tmp_path / str(pid) / "task" / str(pid)).mkdir(parents=True)
        (tmp_path / str(pid) / "task" / str(pid) / "stat").write_text(f"{pid} (x) {letter} 1")
    (tmp_path / "self").mkdir()
    assert processes.Activity(tmp_path).busy(set())
    assert not processes.Activity(tmp_path).busy({8})


def test_activity_is_seen_wherever_it_goes_on_and_its_end_too(tmp_path: Path):
    activity = processes.Activity(tmp_path)

    def set_states(**letters: str) -> None:
        for name, letter in letters.items():
            pid, thread = name[1:].split("_")
            folder = tmp_path / pid / "task" / thread
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "stat").write_text(f"{thread} (x) {letter} 1")

    for letters, busy in (
        ({"t7_7": "S", "t7_9": "R", "t8_8": "S"}, True),
        ({"t7_9": "S", "t8_8": "R"}, True),
        ({"t8_8": "S"}, False),
        ({"t7_7": "D"}, True),
    ):
        set_states(**letters)
        assert activity.busy(set()) is busy
    assert not activity.busy({7}), "the one that was found last is left out"
    activity.busy(set())
    (tmp_path / "7/task/7/stat").unlink()
    assert not activity.busy(set())


def test_the_reaper_of_all_children_keeps_the_exit_codes_of_own_ones():
    """Of some forty commands one was reaped as an orphan, and then counted as done."""
    script = """
        import os, threading
        from dart_desktops.desktop.guest import commands, processes

        codes, failing = [], ["/bin/sh", "-c", "exit 3"]
        several = lambda: codes.extend(commands.run(failing, 60).returncode for _ in range(25))
        threads = [threading.Thread(target=several) for _ in range(8)]
        [thread.start() for thread in threads]
        while any(thread.is_alive() for thread in threads):
            processes.reap_ended()
        ended, killed = processes.OwnedProcess(failing), processes.OwnedProcess(["sleep", "60"])
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        processes.list_pids = lambda: [*processes.owned]
        processes.end_all({os.getpid()})
        print(set(codes), len(codes), ended.returncode, killed.returncode)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "{3} 200 3 -9\n"


def test_a_lost_exit_code_is_an_error():
    process = processes.OwnedProcess(["true"])
    os.waitpid(process.pid, 0)
    with pytest.raises(ChildProcessError, match=r"exit code of \['true'\] is lost"):
        process.wait()


def test_without_a_control_group_a_command_stays_as_it_is(tmp_path: Path):
    assert limits.make_group(tmp_path).command() == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("file", "before", "after", "bound"),
    [
        ("pids.events", "max 0\n", "max 3\n", "processes"),
        (
            "memory.oom_control",
            "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n",
            "oom_kill_disable 0\noom_kill 1\n",
            "MB",
        ),
        ("memory.events", "oom 0\noom_kill 0\n", "oom 1\noom_kill 1\n", "MB"),
    ],
)
def test_a_group_that_has_reached_a_bound_says_which(tmp_path: Path, file: str, before: str, after: str, bound: str):
    (tmp_path / "other").mkdir()
    group = limits.ControlGroup((tmp_path / "other", tmp_path))
    assert group.exceeded() == ""
    (tmp_path / file).write_text(before)
    assert group.exceeded() == ""
    (tmp_path / file).write_text(after)
    assert bound in group.exceeded()


def test_a_control_group_of_version_1_has_the_weight_of_a_low_priority(tmp_path: Path):
    for name in ("memory", "pids", "cpu", "cpuacct"):
        (tmp_path / name).mkdir()
    [folder] = [folder for folder in limits.make_group(tmp_path).folders if folder.parent.name == "cpu"]
    assert (folder / "cpu.shares").read_text() == str(limits.SHARES)


def test_groups_of_dead_workers_are_removed_and_not_those_of_living_ones(tmp_path: Path):
    root, proc = tmp_path / "root", tmp_path / "proc"
    (proc / "7").mkdir(parents=True)
    root.mkdir()
    (root / "cgroup.controllers").touch()
    places = (root / "pids", limits.beside_own(root))
    for place, worker in itertools.product(places, (7, 8)):
        (place / f"{limits.PREFIX}{worker}-0").mkdir(parents=True)
    limits.sweep(root, proc)
    assert {folder.name for place in places for folder in place.iterdir() if "-" in folder.name} == {
        f"{limits.PREFIX}7-0"
    }


def test_a_control_group_of_version_2_is_bounded(tmp_path: Path):
    (tmp_path / "cgroup.controllers").touch()
    parent = (tmp_path / Path("/proc/self/cgroup").read_text().strip().rpartition("::")[2].lstrip("/")).parent
    parent.mkdir(parents=True, exist_ok=True)
    group = limits.make_group(tmp_path)
    [folder] = group.folders
    assert (folder / "pids.max").read_text() == str(limits.PROCESSES)
    assert (folder / "cpu.weight.nice").read_text() == str(limits.NICE)
    assert "cgroup.procs" in group.command()[2]
