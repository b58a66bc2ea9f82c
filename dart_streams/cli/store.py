"""``dart-streams store``: make the store's tables of a run again from the log, and compare the two."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from cassandra.cluster import Session

import topics
from dart_streams.bus.codec import Undecodable, decode
from dart_streams.cli.options import AsJson, ConfigFile, State, read_config
from dart_streams.cli.output import log_to_stderr, note, show
from dart_streams.config import Config
from dart_streams.history import projection, run_log
from dart_streams.history import run_folder as folder
from dart_streams.history import store_rebuild as rebuilding
from dart_streams.history.bundle import Bundle, BundleRecord
from dart_streams.history.bundle_inputs import config_of
from dart_streams.history.projection import TableDigest
from dart_streams.history.records import headers_of
from dart_streams.store import connect

app = typer.Typer(no_args_is_help=True, callback=log_to_stderr)

Run = Annotated[str, typer.Option("--run", help="The run's id.")]
FromBundle = Annotated[
    Path | None, typer.Option("--bundle", help="Take the log from a bundle, not from the broker.", show_default=False)
]


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """A table as the store has it and as the log makes it."""

    table: str
    equal: bool
    rows: int
    digest: str
    rows_of_log: int
    digest_of_log: str


@app.command("apply")
def apply(config: ConfigFile = None) -> None:
    """Create the keyspace and the tables that are missing."""
    settings = read_config(config)
    with connected(settings):
        note(f"keyspace {settings.store.keyspace} is complete")


@app.command("rebuild")
def rebuild(
    run: Run = "latest",
    state: State = Path(".dart"),
    bundle: FromBundle = None,
    wipe: Annotated[bool, typer.Option("--wipe", help="Remove the run's rows first.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a run's rows again from its topics, or from a bundle (with the screenshots it has), and compare."""
    config, source = source_of(run, state, bundle)
    with connected(config) as session:
        if wipe:
            note(f"{rebuilding.wipe(session, config.bus.run)} rows removed")
        written = rebuilding.rebuild(session, projection.rows(config.bus.run, events(config, source)))
        note(f"{written} rows written")
        if source is not None and source.has("blobs"):
            blobs = ((blob.sha256, blob.data) for blob in source.blobs())
            note(f"{rebuilding.restore_blobs(session, blobs)} screenshots written")
        end_with(compared(session, config, source), as_json=as_json)


@app.command("diff")
def diff(run: Run = "latest", state: State = Path(".dart"), bundle: FromBundle = None, as_json: AsJson = False) -> None:
    """Compare a run's rows with what its log makes of them: number and digest a table; exit code 1 if they differ."""
    config, source = source_of(run, state, bundle)
    with connected(config) as session:
        end_with(compared(session, config, source), as_json=as_json)


def end_with(tables: list[Compared], *, as_json: bool) -> None:
    """Print a comparison, and exit with 1 if the tables differ."""
    show(tables, as_json=as_json, title="the store, and what the log makes of it")
    if not all(table.equal for table in tables):
        raise typer.Exit(1)


def compared(session: Session, config: Config, source: Bundle | None) -> list[Compared]:
    """Compare each table."""
    there, made = TableDigest(), TableDigest()
    for row in rebuilding.stored(session, config.bus.run):
        there.add(row)
    for row in projection.rows(config.bus.run, events(config, source)):
        made.add(row)
    return [
        Compared(
            table=stored.table,
            equal=stored == log,
            rows=stored.rows,
            digest=stored.digest,
            rows_of_log=log.rows,
            digest_of_log=log.digest,
        )
        for stored, log in zip(there.tables(), made.tables(), strict=True)
    ]


def source_of(run: str, state: Path, bundle: Path | None) -> tuple[Config, Bundle | None]:
    """Return the run's configuration, and the bundle if one is to be read."""
    if bundle is None:
        return folder.find(str(state), run).config(), None
    source = Bundle(bundle)
    return config_of(source), source


def events(config: Config, source: Bundle | None) -> Iterator[Any]:
    """Yield the events that rows are made of; what does not decode made none."""
    for topic in projection.READ:
        for record in records(config, source, topic):
            try:
                yield decode(topic, record.value, headers_of(record))
            except Undecodable:
                continue


def records(config: Config, source: Bundle | None, topic: topics.Topic) -> Iterator[BundleRecord]:
    """Yield a topic's records, of a bundle or as the broker has them now."""
    if source is not None:
        return source.records(topic.name)
    run_log.existing(config.bus, [topic])
    return run_log.present_records(config.bus, topic)


@contextmanager
def connected(config: Config) -> Iterator[Session]:
    """Yield a session with the store."""
    session = connect(config.store)
    try:
        yield session
    finally:
        session.cluster.shutdown()
