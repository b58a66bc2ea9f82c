"""``dart-streams capture``: a run's records in one file, or a check of such a file."""

from pathlib import Path
from typing import Annotated

import typer

from dart_streams.cli.options import AsJson, RunConfig, RunId, State, listed, run_config
from dart_streams.cli.output import log_to_stderr, note, show
from dart_streams.config import Config
from dart_streams.errors import UserError
from dart_streams.history import bundle


def capture(
    name: Annotated[
        str,
        typer.Argument(
            help="The run's id; with --verify a bundle. \\[default: the latest run]",
            metavar="RUN|BUNDLE",
            show_default=False,
        ),
    ] = "",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The bundle to write. \\[default: RUN.dart]", show_default=False),
    ] = None,
    topics: Annotated[
        str, typer.Option(help="Topics to capture, separated by commas. \\[default: all]", show_default=False)
    ] = "",
    blobs: Annotated[bool, typer.Option("--blobs", help="Capture the screenshots too.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Check a bundle, and capture nothing.")] = False,
    run: RunId = "",
    state: State = Path(".dart"),
    config: RunConfig = None,
    as_json: AsJson = False,
) -> None:
    """Write a run's topics, configuration and task set, with --blobs its screenshots, into one file; or verify one."""
    log_to_stderr()
    if verify:
        show(bundle.verify(Path(name)), as_json=as_json, title=f"{name} is whole")
        return
    deployment = run_config("" if config else name or run, state, config)
    path = output or Path(f"{deployment.bus.run}.dart")
    if path.exists():
        raise UserError(f"{path} exists: remove it, or name another file with --output")
    write(deployment, path, listed(topics), blobs=blobs)
    show(bundle.verify(path), as_json=as_json, title=f"{path}, {path.stat().st_size / 1e6:.1f} MB")


def write(config: Config, path: Path, names: list[str], *, blobs: bool) -> None:
    """Capture, with the store at hand if its screenshots are wanted."""
    from dart_streams.bus.topology import named
    from dart_streams.history import capture as capturing
    from topics import ALL

    traces = config.run.folder / capturing.TRACES
    chosen = [named(name) for name in names] or ALL
    if not blobs:
        capturing.capture(config, path, chosen, traces=traces, report=note)
        return
    from dart_streams.store import SyncStore, connect

    session = connect(config.store)
    try:
        store = SyncStore(session, config.bus.run, config.store.blob_cache_mb, config.store.wait_s)
        capturing.capture(config, path, chosen, store, traces, note)
    finally:
        session.cluster.shutdown()
