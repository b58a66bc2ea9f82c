"""``dart-streams tasks``: what the data manager knows and decides of each task, and why."""

import difflib
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dart_streams.cli.options import AsJson, ConfigFile, read_config
from dart_streams.cli.output import show
from dart_streams.errors import UserError
from dart_streams.history.run_log import read_log
from dart_streams.history.run_state import RunState
from dart_streams.history.task_history import READ, TaskHistory, TaskRow


def tasks(
    task: Annotated[str, typer.Argument(help="A task: show its groups instead of all tasks.", show_default=False)] = "",
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show each task's success rate, budget and groups; or of one task the history of its groups, with the reasons."""
    deployment = read_config(config)
    history = TaskHistory(deployment, RunState().fold(read_log(deployment.bus, READ)))
    if not task:
        rows = history.rows()
        if as_json or not rows:
            show(rows, as_json=as_json, empty=f"nothing was decided yet under {deployment.bus.prefix!r}")
        else:
            Console().print(table_of(rows))
        return
    if task not in history.tasks:
        near = difflib.get_close_matches(task, history.tasks, n=1)
        raise UserError(f"nothing was decided of task {task!r}" + (f": did you mean {near[0]!r}?" if near else ""))
    show(list(history.groups[task].values()), as_json=as_json, title=task, empty="no group was opened yet")


def table_of(rows: Sequence[TaskRow]) -> Table:
    """Return a line a task; the reason, which is long, gets what room is left."""
    table = Table(box=None, pad_edge=False, expand=True)
    for name in ("task", "rate", "N", "cap", "groups", "curated", "dropped", "pool"):
        table.add_column(name, no_wrap=True)
    table.add_column("why", no_wrap=True, overflow="ellipsis", ratio=1)
    for row in rows:
        rate = "" if row.success_rate is None else f"{row.success_rate:.2f}"
        numbers = (row.rollouts, row.max_steps or "", row.groups, row.curated, row.dropped, row.pool)
        table.add_row(row.task, rate, *map(str, numbers), escape(row.why))
    return table
