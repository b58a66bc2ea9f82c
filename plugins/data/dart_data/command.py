"""``dart-streams data``: export a run's episodes as a data set, or import one as demonstrations."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from console.cli.options import AsJson, FromBundle, RunConfig, RunId, State, run_config, run_or_bundle, split_names
from console.cli.output import log_to_stderr, note, notes, show
from console.cli.store import store_session
from dart_streams.errors import UserError

if TYPE_CHECKING:
    from rich.progress import Progress

    from console.bundles.episode_index import EpisodeIndex
    from console.runs.bundle import Bundle
    from dart_data.episode_export import EpisodeSource
    from dart_streams.config import Config

app = typer.Typer(no_args_is_help=True, callback=log_to_stderr)

DataSet = Annotated[Path, typer.Argument(help="A Parquet file, a folder of them, or JSON lines.", metavar="SET")]


@app.command("export")
def export(
    output: Annotated[Path, typer.Argument(help="The Parquet file to write.", metavar="FILE")],
    rows: Annotated[
        Literal["step", "trajectory"], typer.Option("--rows", help="A row for each step, or for each trajectory.")
    ] = "step",
    outcome: Annotated[str, typer.Option(help="Outcomes, separated by commas. \\[default: those with a reward]")] = "",
    task: Annotated[str, typer.Option(help="Task ids or patterns with *, separated by commas. \\[default: all]")] = "",
    version: Annotated[
        str, typer.Option(help="Weight versions that acted: 3, 3.., ..7 or 3..7. \\[default: all]")
    ] = "",
    purpose: Annotated[
        str,
        typer.Option(
            help="Of train, demonstration, explore, check, eval, separated by commas; eval is on held-out tasks."
        ),
    ] = "train,demonstration",
    run: RunId = "",
    state: State = Path(".dart"),
    bundle: FromBundle = None,
    as_json: AsJson = False,
) -> None:
    """Write a run's episodes as Parquet for Hugging Face's datasets: images, messages, actions, rewards, advantages."""
    from console.bundles.episode_index import EpisodeIndex
    from dart_data.episode_export import EpisodeExport, EpisodeFilter, episode_count
    from dart_data.parquet import ParquetSet
    from topics.transitions import REWARDED
    from topics.values import OutcomeKind, Purpose

    first, last = version_range(version)
    wanted = EpisodeFilter(
        outcomes=parse_names("--outcome", outcome, OutcomeKind) or sorted(REWARDED),
        tasks=split_names(task),
        purposes=parse_names("--purpose", purpose, Purpose),
        first_version=first,
        last_version=last,
    )
    if output.suffix != ".parquet":
        raise UserError(f"{output}: name a file that ends in .parquet")
    if output.exists():
        raise UserError(f"{output} exists: remove it, or name another file")
    config, source = run_or_bundle(run, state, bundle)
    with EpisodeIndex() as index, progress_bars() as progress, episodes_of(config, source, index, progress) as episodes:
        exported = EpisodeExport(source or config.bus, config.bus.run, index, episodes)
        report = add_bar(progress, "trajectories", episode_count(source or config.bus))
        with ParquetSet(output, rows) as file:
            for row in exported.rows(wanted, rows, config.policy, report):
                file.write(row)
    if not (result := exported.result).rows:
        output.unlink()
        raise UserError(
            f"nothing was exported: the filters left out {result.filtered} trajectories, and {result.incomplete} are "
            "incomplete. Widen --outcome, --task, --version or --purpose"
        )
    show([result], as_json=as_json, title=f"{output}, {output.stat().st_size / 1e6:.1f} MB")


@app.command("import")
def import_(
    path: DataSet, run: RunId = "", state: State = Path(".dart"), config: RunConfig = None, as_json: AsJson = False
) -> None:
    """Publish a data set as demonstrations of a run, or of a deployment: for the experience pool, or a warm-up.

    A recorder has to run, as it does in a run that is under way; the command ends when all is recorded.
    """
    from dart_data import demonstration_import, demonstrations
    from dart_streams.config import tasks as task_sets

    settings = run_config(run, state, config)
    tasks = task_sets.load(Path(settings.tasks.file))
    count = demonstrations.episode_count(path)
    with progress_bars() as progress:
        report = add_bar(progress, "demonstrations", count)
        result = demonstration_import.run(settings, tasks, demonstrations.episodes_in(path), report)
    if result.example:
        note(f"left out: {sum(result.left_out.values())}, for instance {result.example}")
    show([result], as_json=as_json, title=f"imported into {settings.bus.prefix}*")


@app.command("lines")
def lines(
    path: DataSet, output: Annotated[Path, typer.Argument(help="The file of JSON lines to write.", metavar="FILE")]
) -> None:
    """Write a data set as JSON lines, with its images in a folder beside them, which need no further library."""
    from dart_data import demonstrations, sft_set

    if output.suffix != ".jsonl":
        raise UserError(f"{output}: name a file that ends in .jsonl")
    if output.exists():
        raise UserError(f"{output} exists: remove it, or name another file")
    written, left_out = sft_set.write_lines(demonstrations.episodes_in(path), output)
    for reason in left_out:
        note(f"left out: {reason}")
    note(f"{written} trajectories: {output}")


@app.command("pretrain")
def pretrain(
    recipe: Annotated[str, typer.Argument(help="A recipe that learns from recorded runs.", metavar="RECIPE")],
    bundles: Annotated[list[Path], typer.Argument(help="Bundles, made by `capture`.", metavar="BUNDLE...")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")],
    as_json: AsJson = False,
) -> None:
    """Learn a recipe's model from recorded runs; print how well it predicts, and the keys that choose it."""
    import hashlib

    import msgspec

    from console.bundles.dispatch_events import dispatch_events
    from console.runs.bundle import Bundle
    from dart_streams.config.recipes import SETTINGS, rules_module

    module = rules_module(recipe, "pretrain")
    if module is None:
        raise UserError(f"the recipe {recipe!r} learns nothing before a run")
    if output.exists():
        raise UserError(f"{output} exists: remove it, or name another file")
    model = module.pretrain([dispatch_events(Bundle(bundle)) for bundle in bundles])
    output.write_bytes(msgspec.json.format(msgspec.json.encode(model), indent=1) + b"\n")
    show(model.report(), as_json=as_json, title=str(output))
    digest = hashlib.sha256(output.read_bytes()).hexdigest()
    note(f'[{SETTINGS}.{recipe}]\nmodel_file = "{output}"\nsha256 = "{digest}"')


@app.command("agreement")
def agreement(
    run: RunId = "", state: State = Path(".dart"), bundle: FromBundle = None, as_json: AsJson = False
) -> None:
    """Compare a judge's verdicts with the environment's rewards, by task (recipe judge)."""
    from console.runs.run_log import read_events
    from dart_data.agreement import compare_verdicts
    from topics import trajectories

    config, source = run_or_bundle(run, state, bundle)
    rows = compare_verdicts(read_events(source or config.bus, [trajectories.TOPIC]))
    if rows[0].rollouts == rows[0].no_verdict:
        raise UserError(f"none of the {rows[0].rollouts} rollouts has a verdict: choose the recipe judge for the run")
    show(rows, as_json=as_json, title="verdicts of the judge against rewards of the environment")


@contextlib.contextmanager
def episodes_of(
    config: Config, source: Bundle | None, index: EpisodeIndex, progress: Progress
) -> Iterator[EpisodeSource]:
    """Yield a run's steps: those of the store, or of the bundle through the index."""
    from console.bundles.episode_index import IndexedEpisodes
    from dart_streams.store import sync_store

    if source is not None:
        section = source.sections.get("observations")
        yield IndexedEpisodes(index, source, add_bar(progress, "observations", section.items if section else 0))
        return
    with store_session(config) as session:
        yield sync_store(session, config)


def progress_bars() -> Progress:
    """Return an empty display of progress bars on stderr."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    text = TextColumn("{task.description:>14}")
    columns = (SpinnerColumn(), text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=notes, disable=not notes.is_terminal)


def add_bar(progress: Progress, name: str, total: int | None) -> Callable[[int], None]:
    """Add a progress bar; return the function that moves it."""
    task = progress.add_task(name, total=total)
    return lambda completed: progress.update(task, completed=completed)


def parse_names(option: str, text: str, kinds: Any) -> list[Any]:
    """Return the names in an option's text; raise :class:`UserError` for one that is not among ``kinds``."""
    names = split_names(text)
    for name in names:
        if name not in get_args(kinds):
            raise UserError(f"{option} {name!r}: there are {', '.join(get_args(kinds))}")
    return names


def version_range(text: str) -> tuple[int | None, int | None]:
    """Return the first and the last version of ``3``, ``3..``, ``..7`` or ``3..7``; None is no bound."""
    first, dots, last = text.partition("..")
    try:
        low, high = (int(part) if part.strip() else None for part in (first, last))
    except ValueError:
        raise UserError(f"--version {text!r}: give 3, 3.., ..7 or 3..7") from None
    return low, high if dots else low
