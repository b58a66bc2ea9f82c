"""``dart-streams store``: rebuild a run's rows from its log, or compare the two."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from console.cli.options import AsJson, ConfigFile, FromBundle, RunId, State, read_config, run_or_bundle
from console.cli.output import log_to_stderr, note, show
from dart_streams.errors import UserError

if TYPE_CHECKING:
    from cassandra.cluster import Session

    from console.repair.projection import ProjectedRow
    from console.runs.bundle import Bundle
    from dart_streams.config import Config

app = typer.Typer(no_args_is_help=True, callback=log_to_stderr)


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """Rows and digest of a table, in the store and rebuilt from the log."""

    table: str
    equal: bool
    rows: int
    digest: str
    rows_of_log: int
    digest_of_log: str


@app.command("apply")
def apply(config: ConfigFile = None) -> None:
    """Create the missing keyspace, with the copies of `store.replication`, and tables; migrate an earlier version's."""
    from dart_streams.store import create_schema

    settings = read_config(config)
    create_schema(settings.store, migrate=True)
    note(f"keyspace {settings.store.keyspace} is complete")


@app.command("roles")
def list_roles(
    kind: Annotated[str, typer.Argument(help="A kind of process. \\[default: all of them]")] = "",
    config: ConfigFile = None,
    user: Annotated[str, typer.Option(help="The login of a kind; {kind} stands for it.")] = "dart-{kind}",
    cql: Annotated[bool, typer.Option("--cql", help="Print the statements instead.")] = False,
    give: Annotated[bool, typer.Option("--apply", help="Give these rights in the database.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show which tables each kind of process reads and writes, for a Cassandra that checks permissions.

    With --apply the logins have to exist, and the configuration's own login may grant. It takes no right away.
    """
    from console.launch.access_rights import KINDS
    from console.launch.store_rights import store_rights

    deployment = read_config(config)
    kinds = [kind] if kind else KINDS
    rights = [right for each in kinds for right in store_rights(each, user.replace("{kind}", each))]
    statements = [text for right in rights for text in right.statements(deployment.store.keyspace)]
    if cql:
        typer.echo("".join(f"{text};\n" for text in statements), nl=False)
    else:
        show(rights, as_json=as_json, empty=f"{kind} uses no tables")
    if give:
        from dart_streams.store.sessions import grant_rights

        with store_session(deployment) as session:
            grant_rights(session, statements)
        note(f"{len(statements)} rights given")


@app.command("rebuild")
def rebuild(
    run: RunId = "",
    state: State = Path(".dart"),
    bundle: FromBundle = None,
    config: ConfigFile = None,
    wipe: Annotated[bool, typer.Option("--wipe", help="Remove the run's rows first.")] = False,
    as_json: AsJson = False,
) -> None:
    """Rebuild rows of a run, or of a bundle in the store of --config with its screenshots, from the log; compare."""
    from console.repair import projection
    from dart_streams.store import create_schema

    settings, source = store_and_log(run, state, bundle, config)
    create_schema(settings.store)
    with store_session(settings) as session:
        if wipe:
            note(f"{projection.wipe(session, settings.bus.run)} rows removed")
        written = projection.rebuild(session, rows_of_log(settings, source))
        note(f"{written} rows written")
        if source is not None and source.has("blobs"):
            blobs = ((blob.sha256, blob.data) for blob in source.blobs())
            note(f"{projection.restore_blobs(session, blobs)} screenshots written")
        end_with(compare_tables(session, settings, source), as_json=as_json)


@app.command("diff")
def diff(
    run: RunId = "",
    state: State = Path(".dart"),
    bundle: FromBundle = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Compare rows of a run, or of a bundle in the store of --config, with the log; exit code 1 if they differ."""
    settings, source = store_and_log(run, state, bundle, config)
    with store_session(settings) as session:
        end_with(compare_tables(session, settings, source), as_json=as_json)


def store_and_log(run: str, state: Path, bundle: Path | None, config: Path | None) -> tuple[Config, Bundle | None]:
    """Return the configuration of a run, or a bundle's with the store of a deployment, and the bundle."""
    settings, source = run_or_bundle(run, state, bundle)
    if source is None and config is not None:
        raise UserError("--config names the store of a bundle's rows, and a run has its own: leave it out")
    return settings if source is None else msgspec.structs.replace(settings, store=read_config(config).store), source


def end_with(tables: list[Compared], *, as_json: bool) -> None:
    """Print a comparison, and exit with 1 if the tables differ."""
    show(tables, as_json=as_json, title="the store, and the tables rebuilt from the log")
    if not all(table.equal for table in tables):
        raise typer.Exit(1)


def compare_tables(session: Session, config: Config, source: Bundle | None) -> list[Compared]:
    """Compare each table of the store with the log."""
    from console.repair import projection

    in_store = projection.digest_tables(projection.stored_rows(session, config.bus.run))
    in_log = projection.digest_tables(rows_of_log(config, source))
    return [
        Compared(**msgspec.structs.asdict(stored), equal=stored == log, rows_of_log=log.rows, digest_of_log=log.digest)
        for stored, log in zip(in_store, in_log, strict=True)
    ]


def rows_of_log(config: Config, source: Bundle | None) -> Iterator[ProjectedRow]:
    """Yield the rows that the log makes, skipping records that do not decode."""
    from console.repair import projection
    from console.runs.run_log import read_events

    return projection.project_rows(config.bus.run, read_events(source or config.bus, projection.READ))


@contextmanager
def store_session(config: Config) -> Iterator[Session]:
    """Yield a session with the store."""
    from dart_streams.store import connect

    session = connect(config.store)
    try:
        yield session
    finally:
        session.cluster.shutdown()
