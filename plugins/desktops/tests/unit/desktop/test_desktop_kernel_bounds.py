"""What a desktop may ask of the kernel, and as whom: its filter, its user, its processes."""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from dart_desktops.desktop import sandbox, syscall_filter
from dart_desktops.desktop.guest import processes
from tests import call_filters
from tests.unit.test_socket_folder import of_length
from workers.env.environment import EnvironmentFault
from workers.env.foreign_process import CALLS, X32

__all__ = ["of_length"]

COMMON = {
    "x86_64": {"read": 0, "openat": 257, "clone": 56, "inotify_init1": 294},
    "aarch64": {"read": 63, "openat": 56},
}


def answer(machine: str, number: int, first: int = 0, audit: int | None = None, name_spaces: bool = True) -> str:
    """Run a compiled filter on one call, as the kernel would; return the error's name, empty if it is allowed."""
    code = syscall_filter.compile_filter(machine, name_spaces)
    return call_filters.answer(code, CALLS[machine][0] if audit is None else audit, number, first)


def numbers(calls: Mapping[str, tuple[int, int]], machine: str) -> dict[str, int]:
    return {name: of_both[list(CALLS).index(machine)] for name, of_both in calls.items()}


@pytest.mark.parametrize("machine", CALLS)
def test_calls_that_no_desktop_needs_are_as_if_the_kernel_had_none(machine: str):
    assert len(syscall_filter.REFUSED) == 9
    for name, number in numbers(syscall_filter.REFUSED, machine).items():
        assert answer(machine, number) == "ENOSYS", name
    for name, number in COMMON[machine].items():
        assert answer(machine, number) == "", name
    assert answer(machine, 0, audit=0x40000003) == "ENOSYS", "calls of 32-bit programs have other numbers"
    assert answer(machine, X32) == "ENOSYS"


@pytest.mark.parametrize("machine", CALLS)
def test_sockets_are_of_the_families_that_a_network_namespace_holds(machine: str):
    for call in CALLS[machine][1:3]:
        for family in range(64):
            wanted = "" if family in syscall_filter.FAMILIES else "EAFNOSUPPORT"
            assert answer(machine, call, family) == wanted
            assert answer(machine, call, family | 5 << 32) == wanted, "the kernel looks at the lower half alone"
        assert answer(machine, call, 2**32 - 1) == "EAFNOSUPPORT"


@pytest.mark.parametrize("machine", CALLS)
def test_name_spaces_are_refused_where_none_are_needed_and_threads_are_not(machine: str):
    calls = numbers(syscall_filter.SPACES | {"clone": syscall_filter.CLONE}, machine)
    for name, number in calls.items():
        refused = "EPERM" if name == "clone" else "ENOSYS"
        assert answer(machine, number, 0x10000011, name_spaces=False) == refused, name
        assert answer(machine, number, 0x10000011) == "", name
    assert answer(machine, calls["clone"], 0x3D0F00, name_spaces=False) == ""


def test_a_machine_that_is_not_known_has_no_filter():
    assert syscall_filter.compile_filter("riscv64") == b""


def test_each_sandbox_has_a_user_of_its_own_where_there_are_enough(tmp_path: Path):
    whole, few = tmp_path / "whole", tmp_path / "few"
    whole.write_text("         0          0 4294967295\n")
    few.write_text("         0     100000      65536\n")
    users = [sandbox.next_user(whole) for _ in range(20)]
    assert len(set(users)) == 20
    assert all(user >= sandbox.FIRST_USER for user in users)
    assert sandbox.FIRST_USER + 2**22 * sandbox.USERS < 2**32 - 2, "also for the highest process id"
    assert sandbox.next_user(few) == sandbox.NOBODY


def test_terminals_are_counted(tmp_path: Path):
    assert processes.count_terminals(str(tmp_path / "none")) == 0
    before = processes.count_terminals()
    master, slave = os.openpty()
    assert processes.count_terminals() >= min(before, 1)
    os.close(master)
    os.close(slave)


async def test_a_sandbox_ends_when_it_has_too_many_terminals(monkeypatch: pytest.MonkeyPatch):
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(processes, "TERMINALS_INTERVAL_S", 0.001)
    monkeypatch.setattr(processes, "count_terminals", lambda: processes.MAX_TERMINALS + 2)
    monkeypatch.setattr(os, "_exit", ended.set_result)
    watching = asyncio.create_task(processes.end_with_too_many_terminals())
    assert await asyncio.wait_for(ended, 60) == processes.EXCEEDED
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_a_desktop_listens_below_a_long_path_of_temporary_files(of_length, monkeypatch: pytest.MonkeyPatch):
    of_length(106)
    paths = []

    def bound() -> bytes:
        paths.append(Path(made.socket))
        assert paths[0].is_socket()
        raise EnvironmentFault("far enough")

    monkeypatch.setattr(syscall_filter, "compile_filter", bound)
    made = sandbox.Sandbox(640, 480, 1.0)
    try:
        with pytest.raises(EnvironmentFault, match="far enough"):
            await made.start()
    finally:
        await made.stop()
    assert len(paths) == 1
