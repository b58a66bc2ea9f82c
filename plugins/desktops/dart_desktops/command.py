"""``dart-streams osworld``: check OSWorld's tasks on local desktops, and the mirror of their files."""

from __future__ import annotations

import asyncio
import csv
import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from console.cli.options import AsJson, split_names
from console.cli.output import log_to_stderr, note, show, show_json
from dart_streams.errors import UserError
from dart_streams.fsync import replace_file

if TYPE_CHECKING:
    from dart_desktops.osworld.episode_check import TaskCheck, TaskChecker
    from dart_desktops.osworld.mirror import MirrorEntry
    from dart_desktops.osworld.tasks import OsworldTask, UnusableTask
    from dart_streams.config.tasks import OsworldTasks

CONCURRENCY = 2
LEASE_S, CALL_S = 60.0, 45.0
HOW_TO_FILL = """Nothing is downloaded here. To fill the mirror:
- clone the dataset {dataset} of the Hugging Face hub (with Git LFS) into {folder}, as it is;
- put each other file where its path says: `--json` lists URLs and paths;
- or let files be taken from a local copy of the dataset, wherever they are in it: `--from`;
- or, to check the machinery alone, let substitutes be made: `--make`."""
HOW_TO_RECORD = """{count} addresses are missing. Nothing is downloaded here. To fill {folder}:
- visit each page in a browser, and save "all as HAR with content" in its network panel, or record HAR by Playwright;
- or, to check the machinery alone, let placeholders be made: `--make`."""

app = typer.Typer(help="Check OSWorld's tasks on our desktops, and their mirror.", no_args_is_help=True)
Checkout = Annotated[str, typer.Option("--osworld", help="A checkout of OSWorld. \\[default: DART_OSWORLD]")]
TaskList = Annotated[str, typer.Option("--list", help="The task list, a file of the checkout's evaluation_examples.")]
Only = Annotated[str, typer.Option("--only", help="Only these apps or ids, separated by commas.")]


@app.command()
def mirror(
    folder: Annotated[Path, typer.Argument(help="The mirror's folder.")],
    osworld: Checkout = "",
    task_list: TaskList = "test_all.json",
    only: Only = "",
    make: Annotated[
        bool, typer.Option("--make", help="Make substitutes for what is missing, where that can be.")
    ] = False,
    source: Annotated[
        Path | None, typer.Option("--from", help="Take missing files from this local copy of the data set.")
    ] = None,
    link: Annotated[bool, typer.Option("--link", help="With `--from`: hard links instead of copies.")] = False,
    by_task: Annotated[bool, typer.Option("--by-task", help="List the tasks with missing files, and these.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the files of the tasks that are present, and what to do for the others.

    Exits with 1 if any is not, or if the file of a task cannot be used.
    """
    from dart_desktops.osworld.local_copy import LocalCopy, take_files
    from dart_desktops.osworld.mirror import DATASET, Mirror
    from dart_desktops.osworld.placeholder_mirror import fill

    log_to_stderr()
    tasks, unusable = select_tasks(osworld, task_list, only)
    folder.mkdir(parents=True, exist_ok=True)
    if source is not None:
        files = take_files(Mirror(folder), tasks, LocalCopy(source), link)
        counts = Counter(file.outcome for file in files)
        note(f"{counts['taken']} files taken, {counts['absent']} are not in the copy")
        for file in files:
            if file.outcome not in {"taken", "absent"}:
                note(f"not taken ({file.outcome}): {file.path}")
    if make:
        count = fill(Mirror(folder), tasks)
        note(f"{count} substitutes of our own making written: no score with them is one of OSWorld's")
    entries = Mirror(folder).survey(tasks)
    if as_json:
        show_json(entries)
    elif by_task:
        show(missing_of(entries), as_json=False, title=f"tasks with missing files in {folder}")
    else:
        show(summary_of(entries), as_json=False, title=f"files of {len(tasks)} tasks in {folder}")
    lacking = [entry for entry in entries if entry.state != "present"]
    if lacking:
        note(HOW_TO_FILL.format(dataset=DATASET, folder=folder))
    list_unusable(unusable, failed=bool(lacking))


@app.command()
def pages(
    folder: Annotated[Path, typer.Argument(help="The folder of recorded web pages.")],
    osworld: Checkout = "",
    task_list: TaskList = "test_all.json",
    only: Only = "",
    make: Annotated[bool, typer.Option("--make", help="Make placeholder pages for missing addresses.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the web addresses that tasks visit, and whether the folder has recordings of them.

    Exits with 1 if one is missing, or if the file of a task cannot be used.
    """
    from dart_desktops.osworld.pages import WebPages
    from dart_desktops.osworld.placeholder_pages import make_pages

    log_to_stderr()
    tasks, unusable = select_tasks(osworld, task_list, only)
    folder.mkdir(parents=True, exist_ok=True)
    if make:
        count = make_pages(WebPages(folder), tasks)
        note(f"{count} placeholder pages written: no score with them is one of OSWorld's")
    addresses = WebPages(folder).survey(tasks)
    show(addresses, as_json=as_json, title=f"web pages of {len(tasks)} tasks in {folder}")
    missing = sum(address.state == "missing" for address in addresses)
    if missing:
        note(HOW_TO_RECORD.format(count=missing, folder=folder))
    list_unusable(unusable, failed=bool(missing))


@app.command()
def check(
    folder: Annotated[Path, typer.Option("--mirror", help="The mirror's folder.")],
    desktops: Annotated[
        str, typer.Option(help="The lease server of `worker desktops`; without, nothing is played.")
    ] = "",
    token_file: Annotated[Path | None, typer.Option(help="Its token.")] = None,
    web_pages: Annotated[
        Path | None,
        typer.Option("--pages", help="Recorded web pages to replay; without, tasks of the web are refused."),
    ] = None,
    results: Annotated[
        Path, typer.Option(help="Results, a line a task; tasks that it has are not checked again.")
    ] = Path(".dart/osworld-check.jsonl"),
    osworld: Checkout = "",
    task_list: TaskList = "test_all.json",
    only: Only = "",
    at_once: Annotated[int, typer.Option(min=1, help="Tasks at a time.")] = CONCURRENCY,
    markdown: Annotated[Path | None, typer.Option(help="Write the counts of each app into this page.")] = None,
    rows: Annotated[Path | None, typer.Option("--csv", help="Write a row for each task into this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check that a task's untouched state is worth 0, and the end of its oracle, where there is one, 1.

    Exits with 1 if the file of a task cannot be used.
    """
    from dart_streams.connection import auth

    log_to_stderr()
    tasks, unusable = select_tasks(osworld, task_list, only)
    token = auth.read_secret(f"file:{token_file}", "--token-file").strip() if token_file else ""
    checkout = listed_tasks(osworld, task_list).examples(Path()).parent
    checks = asyncio.run(check_all(tasks, checkout, folder, desktops, token, results, at_once, web_pages))
    if markdown:
        write_table(markdown, checks)
    if rows:
        write_rows(rows, checks)
    show(checks, as_json=as_json, title="OSWorld's tasks")
    list_unusable(unusable)


def missing_of(entries: Sequence[MirrorEntry]) -> list[MissingOfTask]:
    """Return the tasks with files that are missing or changed."""
    missing: dict[str, list[str]] = {}
    for entry in entries:
        if entry.state != "present":
            for page in entry.pages:
                missing.setdefault(page, []).append(f"{entry.path} ({entry.state})")
    return [MissingOfTask(page, ", ".join(paths)) for page, paths in sorted(missing.items())]


class MissingOfTask(msgspec.Struct, frozen=True):
    """A task with its files that are missing, pointers of Git LFS, or changed since first seen."""

    task: str
    files: str


def list_unusable(unusable: Sequence[UnusableTask], failed: bool = False) -> None:
    """List the tasks whose files cannot be used, with their reasons; exit with 1 if there are any, or if it failed."""
    for task in unusable:
        note(f"left out {task.page}: {task.reason}")
    if unusable or failed:
        raise typer.Exit(1)


def listed_tasks(osworld: str, task_list: str) -> OsworldTasks:
    """Return a list of tasks of a checkout."""
    from dart_streams.config.tasks import OsworldTasks

    return OsworldTasks(folder=osworld and str(Path(osworld).absolute()), task_list=task_list)


def select_tasks(osworld: str, task_list: str, only: str) -> tuple[list[OsworldTask], list[UnusableTask]]:
    """Return the tasks that the options name, and those with unusable files; raise UserError without a task."""
    from dart_desktops.osworld import tasks

    wanted = listed_tasks(osworld, task_list)
    examples = wanted.examples(Path())
    names = set(split_names(only))
    pages = [f"{app}/{name}" for app, ids in wanted.listed(Path()).items() for name in ids]
    found = [page for page in pages if not names or names & {page, *page.split("/")}]
    if not found:
        raise UserError(f"--only {only}: no such app or id in {examples / task_list}")
    return tasks.load_all(examples, found)


def summary_of(entries: Sequence[MirrorEntry]) -> list[FileCount]:
    """Count each app's files by state."""
    counted: dict[str, Counter[str]] = {}
    for entry in entries:
        for app in {page.partition("/")[0] for page in entry.pages}:
            counted.setdefault(app, Counter())[entry.state] += 1
            counted[app]["made"] += entry.made
    return [
        FileCount(app, counts["present"], counts["made"], counts["missing"] + counts["pointer"], counts["changed"])
        for app, counts in sorted(counted.items())
    ]


class FileCount(msgspec.Struct, frozen=True):
    """Files of an app's tasks: present, substitutes among these, missing, or changed since first seen."""

    app: str
    present: int
    made: int
    missing: int
    changed: int


async def check_all(
    tasks: Sequence[OsworldTask],
    checkout: Path,
    folder: Path,
    desktops: str,
    token: str,
    results: Path,
    at_once: int,
    web_pages: Path | None = None,
) -> list[TaskCheck]:
    """Return the checks of all tasks; each is written to ``results`` as it ends."""
    from dart_desktops.desktop.sandbox import vscode_folder
    from dart_desktops.osworld.episode_check import TaskChecker, read_checks
    from dart_desktops.osworld.mirror import Mirror
    from dart_desktops.osworld.pages import WebPages
    from dart_desktops.osworld.prerequisites import Prerequisites
    from dart_desktops.osworld.providers import LeaseServerProvider
    from dart_desktops.osworld.sidecar import EvaluatorSidecar

    evaluators = EvaluatorSidecar(checkout=checkout)
    try:
        ready = await evaluators.start()
        mirror = Mirror(folder)
        recorded = WebPages(web_pages) if web_pages else None
        needs = Prerequisites(ready.metrics, ready.getters, mirror, pages=recorded, vscode=bool(vscode_folder()))
        provider = LeaseServerProvider(desktops, token, LEASE_S, CALL_S) if desktops else None
        checker = TaskChecker(provider, mirror, evaluators, needs)
        found = read_checks(results)
        results.parent.mkdir(parents=True, exist_ok=True)
        todo = [task for task in tasks if task.page not in found or found[task.page].verdict == "obstacle"]
        await play_all(checker, todo, results, at_once)
    finally:
        await evaluators.stop()
    done = read_checks(results)
    return [done[task.page] for task in tasks if task.page in done]


async def play_all(checker: TaskChecker, tasks: Sequence[OsworldTask], results: Path, at_once: int) -> None:
    """Check tasks concurrently, and write each result as it comes."""
    free = asyncio.Semaphore(at_once)
    number = 0

    async def check_one(task: OsworldTask) -> None:
        nonlocal number
        async with free:
            checked = await checker.check(task)
        with results.open("ab") as lines:
            lines.write(msgspec.json.encode(checked) + b"\n")
        number += 1
        if checked.verdict != "obstacle":
            note(f"[{number}/{len(tasks)}] {checked.page}: {checked.verdict} {checked.reason}")

    await asyncio.gather(*map(check_one, tasks))


COLUMNS = ("task", "verdict", "files", "pages", "evaluators", "untouched", "oracle", "reason")
BEGIN, END = "<!-- results: written by `dart-streams osworld check --markdown` -->", "<!-- end of results -->"


def write_table(path: Path, checks: Sequence[TaskCheck]) -> None:
    """Write the counts into a Markdown file, between the marks that it has; a new file has nothing else."""
    text = path.read_text(encoding="utf-8") if path.exists() else f"{BEGIN}\n{END}\n"
    if BEGIN not in text or END not in text:
        raise UserError(f"{path} has no place for the table: a line {BEGIN} and a line {END}")
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    replace_file(path, f"{before}{BEGIN}\n\n{table_of(checks)}\n\n{END}{after}".encode())


def table_of(checks: Sequence[TaskCheck]) -> str:
    """Return the counts of each app as a Markdown table."""
    apps: dict[str, list[TaskCheck]] = {}
    for checked in checks:
        apps.setdefault(checked.page.partition("/")[0], []).append(checked)
    lines = [
        "| app | tasks | untouched 0 | with made files | oracle 1 | replayed | refused | not tried |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for app_name, rows in [*sorted(apps.items()), ("all", list(checks))]:
        verdicts = Counter(row.verdict for row in rows)
        begun = [row for row in rows if row.start == 0]
        counts = [len(rows), len(begun), sum(row.made for row in begun), sum(row.oracle == 1 for row in rows)]
        counts.append(sum(bool(row.replayed) for row in begun))
        lines.append("| " + " | ".join(map(str, [app_name, *counts, verdicts["refused"], verdicts["obstacle"]])) + " |")
    return "\n".join(lines)


def write_rows(path: Path, checks: Sequence[TaskCheck]) -> None:
    """Write the results into a CSV file, a row for each task."""
    file = io.StringIO()
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow(COLUMNS)
    for check in checks:
        scores = ["" if value is None else f"{value:g}" for value in (check.start, check.oracle)]
        files = "" if check.verdict == "obstacle" else check.files
        rows.writerow([check.page, check.verdict, files, check.replayed, check.evaluators, *scores, check.reason])
    replace_file(path, file.getvalue().encode())
