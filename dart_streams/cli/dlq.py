"""``dart-streams dlq``: the dead letters of a deployment, and sending them back."""

from pathlib import Path
from typing import Annotated

import typer

from dart_streams.cli.options import AsJson, ConfigFile, State, read_config
from dart_streams.cli.output import log_to_stderr, show
from dart_streams.config import Bus
from dart_streams.errors import UserError
from dart_streams.history import dead_letters as letters
from dart_streams.history import run_folder as folder

app = typer.Typer(no_args_is_help=True, callback=log_to_stderr)

OfTopic = Annotated[str, typer.Argument(help="The topic whose dead letters are meant.", metavar="TOPIC")]
Run = Annotated[str, typer.Option("--run", help="A run instead of a configuration's deployment.", show_default=False)]
Place = Annotated[
    str, typer.Option("--at", help="One letter, by its place.", metavar="PARTITION@OFFSET", show_default=False)
]


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
