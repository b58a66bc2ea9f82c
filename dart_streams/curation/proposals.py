"""The proposals agent: reads proposed tasks, orders a check of each, and publishes the verdict.

An environment worker plays a check: the start has to be worth 0, and the end of the task's solution 1. A few checks are
open at a time, so that a flood of proposals leaves room for training. A check that ends by a fault is ordered again. A
refused proposal goes to the dead letters of its topic as well.
"""

import re
from hashlib import sha256
from typing import NamedTuple

import msgspec

from dart_streams.config import Config
from dart_streams.config.tasks import MAX_TASK_ID, TaskSet
from dart_streams.curation.advantages import checked_reward
from dart_streams.curation.order_tracker import Limits
from dart_streams.curation.reducer import (
    AgentProgress,
    Decision,
    Effect,
    InputRecord,
    InvalidEvent,
    RefusedInput,
    cause_id,
    source_of,
)
from topics import rollout_orders, task_verdicts
from topics.curation_log import Source
from topics.rollout_orders import RolloutOrder
from topics.task_verdicts import TaskVerdict
from topics.tasks import ProposedTask
from topics.trajectories import Trajectory
from topics.transitions import FAULTS, next_attempt
from topics.values import Sampling

NAME = "proposals"
GROUP = "check"
OPEN_CHECKS = 4
MOST_PROPOSALS = 10_000
"""Proposals of a run."""
MOST_PAGES = 2**28
"""Bytes of their pages, each a file on every host of environments."""
MOST_SOLUTIONS = 2**23
"""Bytes of their solutions, which are part of the agent's state."""
WORD = r"[A-Za-z0-9][\w.-]*"
TASK_ID = re.compile(rf"{WORD}(/{WORD})+#[0-9]{{1,9}}", re.ASCII)
"""No part of a page's name begins with a dot, so none leads out of a folder."""
PAGED = "miniwob"
"""The backend that plays pages of proposals."""


class ProposalSettings(NamedTuple):
    """The run's own tasks, its backend, and the attempts of a check that ends by a fault."""

    tasks: TaskSet
    backend: str
    attempts: int

    @classmethod
    def of(cls, config: Config, tasks: TaskSet) -> "ProposalSettings":
        """Return the settings of a deployment."""
        return cls(tasks, config.env.backend, Limits.of(config).attempts)


class Proposal(msgspec.Struct, frozen=True):
    """What is kept of a proposal until its verdict; ``attempt`` is the number of its check."""

    task_id: str
    maker: str
    max_steps: int
    solution: list[str]
    source: Source
    attempt: int = 0

    @property
    def order_id(self) -> str:
        """The id of the check's order."""
        return f"{GROUP}/{self.attempt}/{self.task_id}"


class ProposalsState(msgspec.Struct):
    """Proposals that wait for a check or have an open one, and a digest of each that was ever taken in, by task.

    ``pages`` and ``solutions`` are the bytes of all that were taken in.
    """

    progress: AgentProgress = msgspec.field(default_factory=AgentProgress)
    known: dict[str, str] = {}
    waiting: dict[str, Proposal] = {}
    open: dict[str, Proposal] = {}
    pages: int = 0
    solutions: int = 0


def apply(
    state: ProposalsState, record: InputRecord, settings: ProposalSettings
) -> tuple[ProposalsState, list[Effect]]:
    """Apply a proposed task, or the trajectory of a check; raise InvalidEvent for a second proposal of a task."""
    decisions: list[Effect] = []
    if isinstance(record.event, ProposedTask):
        decisions = take_in(state, record, settings)
    elif isinstance(record.event, Trajectory) and record.event.purpose == "check":
        decisions = finish(state, record, settings.attempts)
    while state.waiting and len(state.open) < OPEN_CHECKS:
        task_id = next(iter(state.waiting))
        state.open[task_id] = state.waiting.pop(task_id)
        decisions.append(order_check(state.open[task_id]))
    return state, decisions


def take_in(state: ProposalsState, record: InputRecord, settings: ProposalSettings) -> list[Effect]:
    """Let a proposal wait for its check, or refuse it; a repeated one changes nothing."""
    task: ProposedTask = record.event
    digest = sha256(msgspec.json.encode(task)).hexdigest()[:32]
    known = state.known.get(task.task_id)
    if known == digest:
        return []
    if known is not None:
        raise InvalidEvent(f"{task.task_id}: another proposal has this id: propose the task under another one")
    if len(state.known) >= MOST_PROPOSALS:
        raise InvalidEvent(f"{task.task_id}: the run has {MOST_PROPOSALS} proposals, and takes no more")
    pages = state.pages + len(task.document.encode())
    solutions = state.solutions + sum(len(action.encode()) for action in task.solution)
    if pages > MOST_PAGES or solutions > MOST_SOLUTIONS:
        raise InvalidEvent(
            f"{task.task_id}: the pages of a run's proposals have at most {MOST_PAGES} bytes in all, and their "
            f"solutions {MOST_SOLUTIONS}: propose smaller ones"
        )
    proposal = Proposal(task.task_id, task.maker, task.max_steps, task.solution, source_of(record))
    state.known[task.task_id], state.pages, state.solutions = digest, pages, solutions
    if reason := reason_against(task, settings):
        return verdict_of(record, proposal, reason)
    state.waiting[task.task_id] = proposal
    return []


def reason_against(task: ProposedTask, settings: ProposalSettings) -> str:
    """Return why a proposal is refused without a check, empty if it is not."""
    most = max(1, settings.tasks.most_steps)
    if len(task.task_id) > MAX_TASK_ID or not TASK_ID.fullmatch(task.task_id):
        return f"its id is no environment/page#seed of at most {MAX_TASK_ID} characters"
    if task.task_id in settings.tasks:
        return "the task file has a task of this id"
    if not 1 <= task.max_steps <= most:
        return f"it has {task.max_steps} steps: 1 to {most} are allowed, as in the task file"
    if len(task.solution) > task.max_steps:
        return f"its solution has {len(task.solution)} actions, and its episodes {task.max_steps} steps"
    if task.document and settings.backend != PAGED:
        return f"it has a page, and env.backend {settings.backend} plays only its own"
    return ""


def finish(state: ProposalsState, record: InputRecord, attempts: int) -> list[Effect]:
    """Decide on a proposal by the end of its check; a check that ended by a fault is ordered again."""
    check: Trajectory = record.event
    proposal = state.open.get(check.task_id)
    if proposal is None or check.order_id != proposal.order_id or check.outcome == "cancelled":
        return []
    checked_reward(check)
    if (attempt := next_attempt(check.outcome, proposal.attempt, attempts)) is not None:
        state.open[check.task_id] = msgspec.structs.replace(proposal, attempt=attempt)
        return [order_check(state.open[check.task_id])]
    del state.open[check.task_id]
    return verdict_of(record, proposal, reason_of(check), check.trajectory_id)


def reason_of(check: Trajectory) -> str:
    """Return why a check refuses its task, empty after a success."""
    if check.outcome == "success":
        return ""
    ended = f"{check.attempt + 1} checks ended as {check.outcome}" if check.outcome in FAULTS else ""
    return ": ".join(part for part in (ended or f"its check ended with reward {check.reward:g}", check.reason) if part)


def order_check(proposal: Proposal) -> Decision:
    """Return the order of a proposal's check."""
    order = RolloutOrder(
        order_id=proposal.order_id,
        group_id=GROUP,
        group_size=1,
        sample=0,
        attempt=proposal.attempt,
        task_id=proposal.task_id,
        max_steps=proposal.max_steps,
        purpose="check",
        sampling=Sampling(),
        after_version=0,
        plan=proposal.solution,
    )
    return Decision(rollout_orders.TOPIC, order.order_id, order)


def verdict_of(record: InputRecord, proposal: Proposal, reason: str, trajectory_id: str = "") -> list[Effect]:
    """Return the verdict because of ``record``; with a reason it refuses the proposal."""
    verdict = TaskVerdict(
        task_id=proposal.task_id,
        accepted=not reason,
        reason=reason,
        max_steps=proposal.max_steps,
        maker=proposal.maker,
        trajectory_id=trajectory_id,
    )
    refused = [RefusedInput(proposal.source, reason)] if reason else []
    return [Decision(task_verdicts.TOPIC, cause_id(NAME, record), verdict), *refused]
