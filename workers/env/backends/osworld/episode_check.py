"""The check of one task: a fresh machine's untouched state is worth 0, and the oracle's end 1."""

import contextlib
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

import msgspec
import structlog

from dart_streams.deadline import Deadline
from dart_streams.errors import UserError
from workers.env.backends.osworld import oracles
from workers.env.backends.osworld.machine import Machine
from workers.env.backends.osworld.mirror import Mirror, needed_urls
from workers.env.backends.osworld.osworld_session import OsworldTaskSession, TaskResources
from workers.env.backends.osworld.prerequisites import Prerequisites
from workers.env.backends.osworld.sidecar import EvaluatorSidecar
from workers.env.backends.osworld.tasks import OsworldTask, settled_score
from workers.env.environment import EnvironmentFault

SETUP_S, EVALUATE_S = 240.0, 240.0
Verdict = Literal["runnable", "refused", "obstacle"]
ADDRESS = re.compile(r"https?://(127\.0\.0\.1|localhost)(:\d+)?")
Lease = Callable[[], contextlib.AbstractAsyncContextManager[Machine]]
"""Gives a machine that nobody has used yet."""

log = structlog.get_logger()


class TaskCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a task's check: ``obstacle`` if it was not tried, ``refused`` if it was.

    ``made`` if files of our own making took the place of published ones.
    """

    page: str
    verdict: Verdict
    reason: str = ""
    start: float | None = None
    oracle: float | None = None
    made: bool = False
    seconds: float = 0.0


class TaskChecker:
    """Checks tasks, each on machines of its own."""

    def __init__(self, lease: Lease | None, mirror: Mirror, evaluators: EvaluatorSidecar, needs: Prerequisites) -> None:
        self.lease, self.mirror, self.evaluators, self.needs = lease, mirror, evaluators, needs

    async def check(self, task: OsworldTask) -> TaskCheck:
        """Return what comes of a task's check; faults are reasons."""
        if (obstacle := self.needs.obstacle(task)) is not None:
            return TaskCheck(page=task.page, verdict="obstacle", reason=obstacle)
        if self.lease is None:
            return TaskCheck(page=task.page, verdict="obstacle", reason="not tried: there is no desktop")
        began = time.monotonic()
        made = self.mirror.is_made_for(task)
        start = oracle = None
        try:
            start = await self.play(task, None)
            if start != 0:
                reason = f"its start state is worth {start:g}"
            elif task.evaluator.infeasible:
                reason, oracle = "", settled_score(task, gave_up=True)
            elif (solution := oracles.oracle_of(task, made)) is None:
                reason = ""
            else:
                oracle = await self.play(task, solution)
                reason = "" if oracle == 1 else f"the oracle's end is worth {oracle:g}"
        except EnvironmentFault as fault:
            reason = f"{'the oracle' if start is not None else 'start'}: {anonymize_reason(str(fault), task)}"[:300]
        except UserError:
            raise
        except Exception as error:  # Whatever the settings of a task break is the verdict on this task.
            log.warning("a task's check broke", task=task.page, exc_info=True)
            reason = f"{type(error).__name__}: {anonymize_reason(str(error), task)}"[:300]
        return TaskCheck(
            page=task.page,
            verdict="refused" if start != 0 else "runnable",
            reason=reason,
            start=start,
            oracle=oracle,
            made=made,
            seconds=round(time.monotonic() - began, 1),
        )

    async def play(self, task: OsworldTask, solution: oracles.Solution | None) -> float:
        """Return the score of a fresh machine after the setup, and after ``solution`` if it is given."""
        assert self.lease is not None
        assignment = OsworldTaskSession(task, TaskResources(self.mirror, self.evaluators, ours=True))
        try:
            async with self.lease() as machine:
                await assignment.set_up(machine, Deadline(SETUP_S))
                if solution is not None:
                    await solution.solve(machine)
                return await assignment.evaluate(machine, Deadline(EVALUATE_S))
        finally:
            await assignment.close()


def anonymize_reason(reason: str, task: OsworldTask) -> str:
    """Return a reason without the machine's address, which differs from run to run, and names of OSWorld's files."""
    for url in needed_urls(task):
        reason = reason.replace(url, "a file").replace(unquote(url.rpartition("/")[2]), "a file")
    return ADDRESS.sub("", reason.replace(f"{task.page}: ", ""))


def read_checks(path: Path) -> dict[str, TaskCheck]:
    """Return the checks that a file of lines has, by page; a line that was cut off is left out."""
    found: dict[str, TaskCheck] = {}
    for line in path.read_bytes().splitlines() if path.exists() else []:
        with contextlib.suppress(msgspec.DecodeError):
            check = msgspec.json.decode(line, type=TaskCheck)
            found[check.page] = check
    return found
