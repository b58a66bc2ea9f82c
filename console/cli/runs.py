"""``dart-streams runs``: list, read, end and remove the runs of a state folder."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from console.cli.options import NO_RUN, AsJson, State, find_run
from console.cli.output import log_to_stderr, note, print_line, show
from console.views.console import PlainConsole
from dart_streams.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

    from console.launch.run_list import RunRow
    from console.launch.run_removal import RunRemoval

app = typer.Typer(help="List, read, end and remove runs.", no_args_is_help=True, callback=log_to_stderr)

Run = Annotated[str, typer.Argument(help="The run's id, or latest.", metavar="RUN")]
FOLLOW_S = 0.3
"""Interval at which a followed log is read."""


@app.command("list")
def list_(state: State = Path(".dart"), as_json: AsJson = False) -> None:
    """List the runs of a state folder, oldest first."""
    from console.launch.run_list import list_runs

    rows = list_runs(state)
    if as_json or not rows:
        show(rows, as_json=as_json, empty=NO_RUN.format(state))
        return
    PlainConsole().print(table_of(rows))


def table_of(rows: Sequence[RunRow]) -> Table:
    """Return a table with a line for each run, in 80 columns."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("run", no_wrap=True)
    table.add_column("state")
    table.add_column("recipe", overflow="fold")
    for name in ("minutes", "steps", "before", "after", "MB"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        shares = ["" if share is None else f"{share:.1%}" for share in (row.success_before, row.success_after)]
        numbers = ["" if number is None else f"{number:g}" for number in (row.minutes, row.steps)]
        table.add_row(row.run, row.state, escape(row.recipe), *numbers, *shares, str(row.mb))
    return table


@app.command("logs")
def logs(
    run: Run = "latest",
    process: Annotated[
        str, typer.Argument(help="A process, such as trainer. \\[default: all]", metavar="PROCESS")
    ] = "",
    state: State = Path(".dart"),
    lines: Annotated[int, typer.Option("--lines", "-n", help="The newest lines of each process.", min=1)] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print lines as they come, until Ctrl-C.")] = False,
) -> None:
    """Print the newest log lines of a run's processes."""
    folder = find_run(run, state).path / "logs"
    files = sorted(folder.glob(f"{process or '*'}.log"))
    if not files:
        there = ", ".join(sorted(file.stem for file in folder.glob("*.log"))) or "none"
        raise UserError(f"no log of {process or 'any process'} in {folder}: there are {there}")
    places = {}
    for file in files:
        with file.open(encoding="utf-8", errors="replace") as text:
            for line in deque(text, maxlen=lines):
                print_line(named_line(file, line, several=len(files) > 1))
            places[file] = text.tell()
    while follow:
        sys.stdout.flush()
        time.sleep(FOLLOW_S)
        for file in sorted(folder.glob(f"{process or '*'}.log")):
            with file.open(encoding="utf-8", errors="replace") as text:
                text.seek(places.get(file, 0))
                for line in text:
                    print_line(named_line(file, line, several=not process))
                places[file] = text.tell()


def named_line(file: Path, line: str, *, several: bool) -> str:
    """Return a log line, with its process where several are printed."""
    return f"{file.stem}: {line.rstrip()}" if several else line.rstrip()


@app.command("stop")
def stop(
    run: Run = "latest",
    state: State = Path(".dart"),
    wait_s: Annotated[float, typer.Option("--wait", help="Seconds to wait for its end.", min=1)] = 120.0,
) -> None:
    """End a running run as Ctrl-C does in its terminal: it can be resumed."""
    from console.launch.run_list import stop_run

    folder = find_run(run, state)
    stop_run(folder, wait_s)
    note(f"run {folder.id} has ended: `{folder.resume_command}` resumes it")


@app.command("rm")
def remove(
    run: Annotated[str, typer.Argument(help="The run's id.", metavar="RUN")],
    state: State = Path(".dart"),
    yes: Annotated[bool, typer.Option("--yes", help="Remove it; without this option nothing is removed.")] = False,
    screenshots: Annotated[
        bool, typer.Option("--screenshots", help="Also those that no other run shows; reads the steps of all runs.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a run has left, and with --yes remove it: topics, rows and folder, with its weights.

    Broker and store have to be up (`dart-streams up`). With --screenshots no run may be under way on this store.
    """
    from console.cli.store import store_session
    from console.launch.run_removal import RunRemoval

    if run == "latest":
        raise UserError("name the run by its id: `dart-streams runs list` has the ids")
    folder = find_run(run, state)
    with store_session(folder.config()) as session:
        removal = RunRemoval(folder, session, screenshots=screenshots)
        show_removal(removal, yes=yes, as_json=as_json)


def show_removal(removal: RunRemoval, *, yes: bool, as_json: bool) -> None:
    """Print what a run has left, and remove it if ``yes``."""
    show(removal.remainders(), as_json=as_json, title=f"run {removal.folder.id}")
    if not yes:
        note("nothing was removed: add --yes to remove all of it, for good")
        return
    removal.remove()
    note(f"run {removal.folder.id} was removed")
