"""``dart-streams tasks``: the data manager's decisions for each task, with their reasons."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from console.cli.options import AsJson, RunConfig, RunId, State, run_config
from console.cli.output import log_to_stderr, note, show
from console.views.console import PlainConsole
from dart_streams.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

    from console.runs.task_history import TaskRow
    from dart_streams.config import Config

WIDE_COLUMNS = 110
"""Terminal width from which the table shows the reasons of the next budgets."""


def show_tasks(
    task: Annotated[str, typer.Argument(help="A task: show its groups instead of all tasks.")] = "",
    run: RunId = "",
    state: State = Path(".dart"),
    config: RunConfig = None,
    everything: Annotated[bool, typer.Option("--all", help="List tasks without a group too.")] = False,
    proposed: Annotated[bool, typer.Option("--proposed", help="Show what became of proposed tasks, and why.")] = False,
    wide: Annotated[bool, typer.Option("--wide", help="Show the reasons on a narrow terminal too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show each task's success rate, budget and groups; or the history of one task's groups, with the reasons."""
    from console.runs.run_log import read_log
    from console.runs.run_state import RunState
    from console.runs.task_history import READ, TaskHistory

    log_to_stderr()
    deployment = run_config(run, state, config)
    if proposed:
        show_proposed(deployment, as_json=as_json)
        return
    history = TaskHistory(deployment, RunState().fold(read_log(deployment.bus, READ)))
    if task:
        if task not in history.tasks:
            near = difflib.get_close_matches(task, history.tasks, n=1)
            raise UserError(f"nothing is decided of task {task!r}" + (f": did you mean {near[0]!r}?" if near else ""))
        show(list(history.groups[task].values()), as_json=as_json, title=task, empty="no group is open yet")
        return
    rows = history.rows()
    if as_json or not rows:
        show(rows, as_json=as_json, empty=f"nothing is decided yet under {deployment.bus.prefix!r}")
        return
    listed = [row for row in rows if row.groups or everything]
    console = PlainConsole()
    reasons = wide or console.width >= WIDE_COLUMNS
    console.print(table_of(listed, reasons=reasons))
    if not reasons:
        console.print("--wide adds the reason of each task's next budget")
    if left_out := len(rows) - len(listed):
        console.print(f"{left_out} tasks without a group, such as held-out ones, are not listed: --all lists them")


def show_proposed(deployment: Config, *, as_json: bool) -> None:
    """Print the proposed tasks, and the numbers of accepted, refused and waiting ones."""
    from console.runs.run_log import read_log
    from console.runs.run_state import RunState
    from console.runs.task_history import proposal_rows
    from topics import task_verdicts, tasks

    rows = proposal_rows(RunState().fold(read_log(deployment.bus, (tasks.TOPIC, task_verdicts.TOPIC))))
    show(rows, as_json=as_json, empty=f"no task was proposed under {deployment.bus.prefix!r}")
    states = [row.state for row in rows]
    note(", ".join(f"{states.count(state)} {state}" for state in ("accepted", "refused", "waiting")))


def table_of(rows: Sequence[TaskRow], *, reasons: bool) -> Table:
    """Return a table with a line for each task, in 80 columns without ``reasons``."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("task", overflow="fold")
    for name in ("rate", "N", "cap", "groups", "curated", "dropped", "pool"):
        table.add_column(name, no_wrap=True, justify="right", min_width=len(name))
    if reasons:
        table.add_column("reason", overflow="fold")
    for row in rows:
        rate = "" if row.success_rate is None else f"{row.success_rate:.2f}"
        numbers = (row.rollouts, row.max_steps or "", row.groups, row.curated, row.dropped, row.pool)
        table.add_row(row.task, rate, *map(str, numbers), *([escape(row.why)] if reasons else []))
    return table
