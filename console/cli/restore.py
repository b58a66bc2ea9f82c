"""``dart-streams restore``: bring a captured run back into a broker, a store and a state folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from console.cli.options import AsJson, ConfigFile, State, read_config
from console.cli.output import log_to_stderr, note, show


def restore(
    path: Annotated[Path, typer.Argument(help="A bundle of `capture --blobs`.", metavar="BUNDLE")],
    state: State = Path(".dart"),
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Restore a captured run: its topics, rows, screenshots and files. It can be watched and replayed, not resumed.

    The configuration names the broker and the store, which must not have the run yet.
    """
    from console.bundles import restore as restoring
    from console.runs.bundle import Bundle

    log_to_stderr()
    restored = restoring.restore(Bundle(path), read_config(config), state, note)
    show([restored], as_json=as_json)
