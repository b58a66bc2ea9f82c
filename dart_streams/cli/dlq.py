"""``dart-streams dlq``: the dead letters of a run, and their way back."""

from pathlib import Path
from typing import Annotated

import typer

from dart_streams.cli.options import AsJson, RunConfig, RunId, State, run_config
from dart_streams.cli.output import log_to_stderr, show
from dart_streams.errors import UserError
from dart_streams.history import dead_letters as letters

app = typer.Typer(no_args_is_help=True, callback=log_to_stderr)

OfTopic = Annotated[str, typer.Argument(help="The topic whose dead letters are meant.", metavar="TOPIC")]
Place = Annotated[
    str, typer.Option("--at", help="A single letter, by its place.", metavar="PARTITION@OFFSET", show_default=False)
]


@app.command("list")
def list_letters(
    run: RunId = "", state: State = Path(".dart"), config: RunConfig = None, as_json: AsJson = False
) -> None:
    """Count each topic's dead letters, by reason."""
    bus = run_config(run, state, config).bus
    show(letters.summary(bus), as_json=as_json, empty=f"no dead letters under {bus.prefix!r}")


@app.command("show")
def show_letters(
    topic: OfTopic,
    place: Place = "",
    run: RunId = "",
    state: State = Path(".dart"),
    config: RunConfig = None,
    as_json: AsJson = False,
) -> None:
    """Show a topic's dead letters: where each came from, why it was rejected, and its value."""
    found = letters.shown(run_config(run, state, config).bus, letters.topic_of(topic), place)
    show(found, as_json=as_json, empty=f"no dead letters of {topic}")


@app.command("redrive")
def redrive(
    topic: OfTopic,
    place: Place = "",
    everything: Annotated[bool, typer.Option("--all", help="Send all of the topic's letters back.")] = False,
    run: RunId = "",
    state: State = Path(".dart"),
    config: RunConfig = None,
    as_json: AsJson = False,
) -> None:
    """Publish dead letters to their topic again, as they first were; one that was sent back before is skipped."""
    if bool(place) == everything:
        raise UserError("name what to send back: one letter with --at PARTITION@OFFSET, or --all of them")
    result = letters.redrive(run_config(run, state, config).bus, letters.topic_of(topic), place)
    show(result, as_json=as_json, empty=f"no dead letters of {topic}")
