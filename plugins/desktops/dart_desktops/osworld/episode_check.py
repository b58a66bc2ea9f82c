"""Check of one task: a fresh machine's untouched state scores 0, and the oracle's final state 1."""

import contextlib
import re
import time
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

import msgspec
import structlog

from dart_desktops.osworld import oracles
from dart_desktops.osworld.machine import Machine
from dart_desktops.osworld.mirror import Mirror, needed_urls
from dart_desktops.osworld.osworld_session import OsworldTaskSession, TaskResources
from dart_desktops.osworld.pages import visits_web
from dart_desktops.osworld.prerequisites import Prerequisites
from dart_desktops.osworld.providers import MachineProvider
from dart_desktops.osworld.sidecar import EvaluatorSidecar
from dart_desktops.osworld.tasks import OsworldTask, settled_score
from dart_streams.config.text import MALFORMED
from dart_streams.deadline import Deadline
from dart_streams.errors import UserError
from workers.env.environment import EnvironmentFault

SETUP_S, EVALUATE_S = 240.0, 240.0
LEASE_S, CALL_S = 600.0, 45.0
Verdict = Literal["runnable", "refused", "obstacle"]
ADDRESS = re.compile(r"https?://(127\.0\.0\.1|localhost)(:\d+)?")

log = structlog.get_logger()


class TaskCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a task's check: ``obstacle`` without a trial, ``refused`` after one.

    ``needs_files`` if it needs published files, ``made`` if placeholders took their place. ``replayed`` if pages of the
    web were replayed: recorded ones, or placeholders. ``start`` and ``oracle`` are scores, by the ``evaluators`` of a
    package or a checkout.
    """

    page: str
    verdict: Verdict
    reason: str = ""
    start: float | None = None
    oracle: float | None = None
    needs_files: bool = False
    made: bool = False
    replayed: Literal["", "recorded", "made"] = ""
    evaluators: str = ""
    seconds: float = 0.0

    @property
    def files(self) -> str:
        """The origin of its files, in a word."""
        return "made" if self.made else "published" if self.needs_files else "none"


class TaskChecker:
    """Checks tasks, each on fresh machines of ``provider``."""

    def __init__(
        self, provider: MachineProvider | None, mirror: Mirror, evaluators: EvaluatorSidecar, needs: Prerequisites
    ) -> None:
        self.provider, self.mirror, self.evaluators, self.needs = provider, mirror, evaluators, needs

    async def check(self, task: OsworldTask) -> TaskCheck:
        """Check a task; faults become the reason of the verdict."""
        if (obstacle := self.needs.obstacle(task)) is not None:
            return TaskCheck(page=task.page, verdict="obstacle", reason=obstacle)
        if self.provider is None:
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
        except Exception as error:  # Any error that a task's settings cause is the verdict on that task.
            log.warning("a task's check broke", task=task.page, exc_info=True)
            reason = f"{type(error).__name__}: {anonymize_reason(str(error), task)}"[:300]
        return TaskCheck(
            page=task.page,
            verdict="refused" if start != 0 else "runnable",
            reason=reason,
            start=start,
            oracle=oracle,
            needs_files=bool(needed_urls(task)),
            made=made,
            replayed=self.replayed_for(task),
            evaluators=self.evaluators.ready.origin,
            seconds=round(time.monotonic() - began, 1),
        )

    def replayed_for(self, task: OsworldTask) -> Literal["", "recorded", "made"]:
        """Return the kind of the replayed pages that a task visits, empty without any."""
        if self.needs.pages is None or not visits_web(task):
            return ""
        return "made" if self.needs.pages.is_made_for(task) else "recorded"

    async def play(self, task: OsworldTask, solution: oracles.Solution | None) -> float:
        """Return the score of a fresh machine after the setup and the ``solution``, if given."""
        assert self.provider is not None
        held = await self.provider.acquire(Deadline(LEASE_S))
        shared = TaskResources(self.mirror, self.evaluators, ours=True, pages=self.needs.pages)
        session = OsworldTaskSession(task, shared)
        try:
            async with Machine(held.endpoint, CALL_S) as machine:
                await session.set_up(machine, Deadline(SETUP_S))
                if solution is not None:
                    await solution.solve(machine)
                return await session.evaluate(machine, Deadline(EVALUATE_S))
        finally:
            await session.close()
            await held.release()


def anonymize_reason(reason: str, task: OsworldTask) -> str:
    """Remove from a reason the machine's address, which differs between runs, and names of OSWorld's files."""
    for url in needed_urls(task):
        reason = reason.replace(url, "a file").replace(unquote(url.rpartition("/")[2]), "a file")
    return ADDRESS.sub("", reason.replace(f"{task.page}: ", ""))


def read_checks(path: Path) -> dict[str, TaskCheck]:
    """Return the checks in a file of JSON lines, by page; a truncated line is skipped."""
    checks: dict[str, TaskCheck] = {}
    for line in path.read_bytes().splitlines() if path.exists() else []:
        with contextlib.suppress(*MALFORMED):
            check = msgspec.json.decode(line, type=TaskCheck)
            checks[check.page] = check
    return checks
