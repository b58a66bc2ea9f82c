"""``dart-streams dlq``: the dead letters of a deployment, and sending them back."""

import sys
from pathlib import Path
from typing import Annotated

import structlog
import typer

from dart_streams.cli.options import AsJson, ConfigFile, read_config
from dart_streams.cli.output import show
from dart_streams.config import Bus
from dart_streams.errors import UserError
from dart_streams.replay import letters
from dart_streams.run import folder

app = typer.Typer(no_args_is_help=True)

OfTopic = Annotated[str, typer.Argument(help="The topic whose dead letters are meant.", metavar="TOPIC")]
Run = Annotated[str, typer.Option("--run", help="A run instead of a configuration's deployment.", show_default=False)]
State = Annotated[Path, typer.Option("--state", help="The state folder.")]
Place = Annotated[
    str, typer.Option("--at", help="One letter, by its place.", metavar="PARTITION@OFFSET", show_default=False)
]


@app.callback()
def log_to_stderr() -> None:
    """Keep stdout for the command's result."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))


def bus_of(config: Path | None, run: str, state: Path) -> Bus:
    """Return the bus of a run, or of a configuration."""
    return (folder.find(str(state), run).config() if run else read_config(config)).bus


@app.command("list")
def list_letters(
    config: ConfigFile = None, run: Run = "", state: State = Path(".dart"), as_json: AsJson = False
) -> None:
    """Show how many dead letters each topic has, and why."""
    bus = bus_of(config, run, state)
    show(letters.summary(bus), as_json=as_json, empty=f"no dead letters under {bus.prefix!r}")


@app.command("show")
def show_letters(
    topic: OfTopic,
    place: Place = "",
    config: ConfigFile = None,
    run: Run = "",
    state: State = Path(".dart"),
    as_json: AsJson = False,
) -> None:
    """Show a topic's dead letters: where each came from, why it was put aside, and what it says."""
    found = letters.shown(bus_of(config, run, state), letters.topic_of(topic), place)
    show(found, as_json=as_json, empty=f"no dead letters of {topic}")


@app.command("redrive")
def redrive(
    topic: OfTopic,
    place: Place = "",
    everything: Annotated[bool, typer.Option("--all", help="Send all of the topic's letters back.")] = False,
    config: ConfigFile = None,
    run: Run = "",
    state: State = Path(".dart"),
    as_json: AsJson = False,
) -> None:
    """Send dead letters back to their topic, as they first were; one sent before is not sent again."""
    if bool(place) == everything:
        raise UserError("say which: one letter with --at PARTITION@OFFSET, or --all of them")
    result = letters.redrive(bus_of(config, run, state), letters.topic_of(topic), place)
    show(result, as_json=as_json, empty=f"no dead letters of {topic}")
