"""Workers as the tests run them: in the test's event loop, or as processes."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from kafka.admin import MemberToRemove

from console.runs.run_folder import write_toml
from dart_streams.bus import admin
from dart_streams.config import Config
from tests.fork_server import PROGRAM, Forked
from tests.waiting import wait_until
from workers.runtime.lifecycle import Connect, run_until_stopped

BOUND_S = 120.0
"""Generous: tests run on machines that do other things at the same time."""


@contextlib.asynccontextmanager
async def running_worker(connect: Connect, config: Config, name: str) -> AsyncIterator[asyncio.Task[int]]:
    """Run a worker in this event loop; its failure fails the test, and it must drain at the end."""
    stop = asyncio.Event()
    task = asyncio.create_task(run_until_stopped(connect, config, name, stop))
    try:
        yield task
    finally:
        stop.set()
        async with asyncio.timeout(config.run.drain_s + BOUND_S):
            assert await task == 0


@contextlib.contextmanager
def worker_process(
    kind: str, config: Config, folder: Path, log: Path | None = None, disturbed: str = ""
) -> "Iterator[subprocess.Popen[str]]":
    """Run the worker ``KIND-0`` as a process, killed at the end.

    ``disturbed`` are the settings of :mod:`tests.faults.disturbed_env`. The log goes to ``log``, else to a pipe: enough
    for a test that reads it, or that is over soon.
    """
    file = folder / f"{kind}-0.toml"
    write_toml(file, config)
    program = [sys.executable, "-m", "tests.faults.disturbed_env", disturbed] if disturbed else [str(PROGRAM)]
    command = [*program, "worker", kind, "--config", str(file), "--id", f"{kind}-0"]
    with contextlib.ExitStack() as stack:
        errors = stack.enter_context(log.open("w")) if log else subprocess.PIPE
        process = stack.enter_context(Forked(command, stderr=errors, text=True))
        stack.callback(process.kill)
        yield process


async def exit_code_of(process: "subprocess.Popen[str]") -> int:
    """Wait for the end of a process."""
    return await asyncio.to_thread(process.wait, BOUND_S)


def throw_out(config: Config, group: str, name: str = "") -> None:
    """Remove a member of a group, or all of them, as the broker does when its session has ended.

    One that comes back joins anew.
    """
    group = config.bus.prefix + group
    with admin.connect(config.bus) as client:

        def members() -> list[MemberToRemove]:
            found = client.describe_groups([group])[group]["members"]
            ours = [one for one in found if (one["group_instance_id"] or one["client_id"]).startswith(name)]
            return [MemberToRemove(member_id=one["member_id"]) for one in ours]

        client.remove_group_members(group, members())
        wait_until(lambda: not members())
