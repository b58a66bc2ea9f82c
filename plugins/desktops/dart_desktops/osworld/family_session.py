"""A task of :mod:`dart_desktops.desktop.families` on any machine that has its application."""

import asyncio
import base64
import posixpath
import re
import shlex
from collections.abc import AsyncIterator
from http import HTTPStatus

from dart_desktops.desktop.documents import SAVED_BYTES
from dart_desktops.desktop.guest.file_calls import COPIES
from dart_desktops.desktop.problem import (
    Content,
    Elements,
    Problem,
    SessionOutcome,
    oracle_actions,
    parse_elements,
)
from dart_desktops.osworld.environment import TaskSession
from dart_desktops.osworld.machine import FileMissing, FileUnreadable, Machine
from dart_desktops.osworld.settling import wait_stable
from dart_streams.actions import Action
from dart_streams.deadline import Deadline
from workers.env.backends.connection import StatusFault
from workers.env.environment import EnvironmentFault

FOLDER = "/tmp/dart-family"
OUTPUT, CODE = f"{FOLDER}/output", f"{FOLDER}/exit-code"
POLL_INTERVAL_S = 0.1
WINDOW_POLL_INTERVAL_S = 0.3
"""Interval between lists of windows while an application starts; each starts a process of the machine."""
STABLE_S, STABLE_LIMIT_S = 0.4, 30.0
"""Time without a change after which the first screen is stable, and its time limit."""
ENDING_S = 30.0
"""Time limit for an application to end after its window is gone."""


class FamilyTaskSession(TaskSession):
    """One problem on one machine, for one episode. A test checks that each family's start scores 0."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.instruction = problem.instruction
        self._home = ""
        self._windows = 0
        self._start: SessionOutcome | None = None

    async def set_up(self, machine: Machine, deadline: Deadline) -> None:
        """Write the files, start the application, and wait until its window is shown and stable."""
        script = f"rm -rf {FOLDER} && mkdir -p {FOLDER} && cd && pwd"
        self._home = (await machine.execute(script, True, deadline))["output"].strip()
        for path, content in self.problem.files.items():
            raw = content.encode() if isinstance(content, str) else content
            await machine.upload(f"{self._home}/{path}", raw, deadline)
        self._windows = await count_windows(machine, deadline)
        self._start = await self._outcome(machine, deadline)
        run = f"cd && {shlex.join(self.problem.command)} >{OUTPUT} 2>/dev/null </dev/null"
        script = f"{run}; echo $? >{CODE}.new; mv {CODE}.new {CODE}"
        await machine.launch(["/bin/sh", "-c", script], deadline=deadline)
        program = next(word for word in self.problem.command if word != "env" and "=" not in word)
        while await count_windows(machine, deadline) <= self._windows:
            if deadline.remaining_s <= WINDOW_POLL_INTERVAL_S:
                raise EnvironmentFault(f"{program} shows no window within the time of a reset")
            if (code := (await self._outcome(machine, deadline)).exit_code) is not None:
                raise EnvironmentFault(f"{program} ended at once, with exit code {code}")
            await asyncio.sleep(WINDOW_POLL_INTERVAL_S)
        _, still = await wait_stable(machine, deadline, STABLE_S, STABLE_LIMIT_S)
        if not still:
            raise EnvironmentFault(f"{program} is not at rest after {STABLE_LIMIT_S:g} s")

    async def is_over(self, machine: Machine, deadline: Deadline) -> bool:
        """Return whether the application has ended, or a watched path has changed."""
        return await self._outcome(machine, deadline) != self._start

    async def evaluate(self, machine: Machine, deadline: Deadline) -> float:
        """Return 1 if the task is solved, else 0."""
        outcome = await self._outcome(machine, deadline, with_output=True)
        ending = Deadline(min(ENDING_S, deadline.remaining_s))
        while (
            outcome.exit_code is None and await count_windows(machine, deadline) <= self._windows and not ending.expired
        ):
            await asyncio.sleep(POLL_INTERVAL_S)  # Its window is gone, but its exit code is not written yet.
            outcome = await self._outcome(machine, deadline, with_output=True)
        reads = self.problem.reads_elements and outcome.exit_code is None
        elements = parse_elements(await machine.accessibility(deadline)) if reads else []
        return float(self.problem.solved(outcome, elements))

    def demonstrate(self, machine: Machine, deadline_s: float) -> AsyncIterator[Action]:
        """Yield the oracle's actions, each from the shown elements."""

        async def elements() -> Elements:
            return parse_elements(await machine.accessibility(Deadline(deadline_s)))

        return oracle_actions(self.problem.oracle, elements, lambda: self.is_over(machine, Deadline(deadline_s)))

    async def _outcome(self, machine: Machine, deadline: Deadline, with_output: bool = False) -> SessionOutcome:
        code = (await read_text(machine, CODE, deadline)).strip()
        return SessionOutcome(
            exit_code=int(code) if re.fullmatch("[0-9]{1,3}", code) else None,
            output=await read_text(machine, OUTPUT, deadline) if with_output else "",
            state={path: await self._content(machine, path, deadline) for path in self.problem.watched},
        )

    async def _content(self, machine: Machine, path: str, deadline: Deadline) -> Content:
        """Return what a watched path has: a folder if files of the task are in it, or the files that have a text."""
        if path.startswith(COPIES):
            text = path.removeprefix(COPIES)
            files = f"find ~ -type f -size {len(text.encode())}c -not -path '*/Trash/*'"
            found = await machine.execute(f"{files} -exec grep -lxF -- {shlex.quote(text)} {{}} +", True, deadline)
            return sorted(found["output"].splitlines())
        whole = posixpath.join(self._home, path)
        try:
            if any(name.startswith(f"{path}/") for name in self.problem.files):
                try:
                    listed = await machine.list_directory(whole, deadline)
                except StatusFault as fault:
                    if fault.status != HTTPStatus.BAD_REQUEST:  # It is no folder any more.
                        raise
                else:
                    return sorted(str((child or {}).get("name")) for child in listed.get("children", [None]))
            return base64.b64encode(await machine.file(whole, deadline, SAVED_BYTES)).decode()
        except FileMissing:
            return None
        except FileUnreadable:
            return True


async def count_windows(machine: Machine, deadline: Deadline) -> int:
    """Return the number of windows that the window manager lists."""
    listed = await machine.execute(["wmctrl", "-l"], deadline=deadline)
    return len(listed["output"].splitlines())


async def read_text(machine: Machine, path: str, deadline: Deadline) -> str:
    """Return a file's text, empty for a missing or unreadable file."""
    try:
        return (await machine.file(path, deadline, SAVED_BYTES)).decode(errors="replace")
    except (FileMissing, FileUnreadable):
        return ""
