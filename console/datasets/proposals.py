"""Proposed tasks from files: HTML pages, or JSON lines of ``topics.tasks.ProposedTask``; and what became of them."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from console.runs.run_state import RunState
from dart_streams.bus.clients import Publisher
from dart_streams.config import Bus
from dart_streams.config.tasks import task_id
from dart_streams.config.text import MALFORMED
from dart_streams.errors import UserError
from topics import tasks
from topics.tasks import ProposedTask

PAGES, LINES = ".html", ".jsonl"


State = Literal["accepted", "refused", "waiting"]


class ProposalRow(msgspec.Struct, frozen=True):
    """A proposed task and what became of it."""

    task: str
    state: State
    max_steps: int
    maker: str
    reason: str


def proposals_in(path: Path, environment: str, seeds: Sequence[int], max_steps: int, maker: str) -> list[ProposedTask]:
    """Return the tasks of a file or folder: a page has one for each seed, and JSON lines say all themselves.

    Raises UserError, with file and line, if a file can't be read or has no task.
    """
    files = sorted(path.glob(f"*{PAGES}")) if path.is_dir() else [path]
    found: list[ProposedTask] = []
    try:
        for file in files:
            if file.suffix == PAGES:
                page = file.read_text()
                found += [
                    ProposedTask(
                        task_id=task_id(environment, file.stem, seed), max_steps=max_steps, maker=maker, document=page
                    )
                    for seed in seeds
                ]
            elif file.suffix == LINES:
                found += lines_of(file)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} can't be read: {error}") from None
    if not found:
        raise UserError(f"{path} has no task: name a page (*{PAGES}), a folder of pages, or JSON lines (*{LINES})")
    return found


def lines_of(file: Path) -> Iterator[ProposedTask]:
    """Yield the tasks of JSON lines; raise UserError for a line that is none."""
    for number, line in enumerate(file.read_text().splitlines(), start=1):
        try:
            if line.strip():
                yield msgspec.json.decode(line, type=ProposedTask)
        except MALFORMED as error:
            raise UserError(f"{file}, line {number}: no proposed task: {error}") from None


async def publish(bus: Bus, proposed: Sequence[ProposedTask]) -> None:
    """Publish proposed tasks; raise ServiceUnavailable, or UserError for one that the topic does not take."""
    async with Publisher(bus, "propose") as publisher:
        for task in proposed:
            await publisher.publish(tasks.TOPIC, task, record_id=task.task_id)


def proposal_rows(state: RunState) -> list[ProposalRow]:
    """Return each proposed task of a run, in the log's order."""
    rows = []
    for task in state.proposed.values():
        verdict = state.verdicts.get(task.task_id)
        known: State = "waiting" if verdict is None else "accepted" if verdict.accepted else "refused"
        rows.append(ProposalRow(task.task_id, known, task.max_steps, task.maker, verdict.reason if verdict else ""))
    return rows
