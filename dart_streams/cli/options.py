"""Options that several commands share, and the configuration they name."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from dart_streams.config import Config, load

DEFAULT_CONFIG = Path("deploy/config/demo.toml")

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", help=f"Configuration file. [default: {DEFAULT_CONFIG} if it is there]", show_default=False
    ),
]
State = Annotated[Path, typer.Option("--state", help="The state folder.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def listed(text: str) -> list[str]:
    """Return the names in an option's text, which has commas between them."""
    return [name.strip() for name in text.split(",") if name.strip()]


def read_config(path: Path | None) -> Config:
    """Read a command's configuration, with ``tasks.file`` made absolute: it is relative to the file that names it.

    Without a path: the demonstration's, or the built-in defaults where that is not at hand.
    """
    if path is None:
        if not DEFAULT_CONFIG.exists():
            return Config()
        path = DEFAULT_CONFIG
    config = load(path)
    tasks = msgspec.structs.replace(config.tasks, file=str((path.parent / config.tasks.file).absolute()))
    return msgspec.structs.replace(config, tasks=tasks)
