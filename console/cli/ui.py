"""``dart-streams ui``: serve the web page of a run or bundle, or write it into one file."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from console.cli.options import AsJson, RunConfig, State, find_run, read_config
from console.cli.output import log_to_stderr, note, show_json
from console.cli.page_address import PageAddress, announce, read_address, read_token
from dart_streams.background import cancel_tasks
from dart_streams.errors import ConfigError, ServiceUnavailable, UserError

if TYPE_CHECKING:
    from console.views.page.feedback_intake import FeedbackIntake
    from console.views.page.guard import Guard
    from console.views.page.run_catalog import RunCatalog
    from console.views.page.source import RunSource

NICENESS = 10
"""The page yields the CPU to the processes of the run."""
TRIED_PORTS = 20
ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses that listen on every interface, and this machine's addresses for them."""

BehindProxy = Annotated[
    bool,
    typer.Option(
        "--behind-proxy",
        help="Listen beyond loopback without TLS: what stands in front sees to it (a proxy, a port published on "
        "loopback).",
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(help="Take the token from this file, for a page that stays at one address; it is not printed."),
]
TakesFeedback = Annotated[
    bool,
    typer.Option(
        "--feedback",
        help="Let viewers judge, correct and take over rollouts of a run that trains on feedback. A second address is "
        "printed for them, with another token.",
    ),
]
FeedbackTokenFile = Annotated[
    Path | None, typer.Option(help="Take the token of --feedback from this file; it is not printed.")
]
AddressFile = Annotated[
    Path | None,
    typer.Option(
        help="Write the address there, for this user only. If it is there already, the page comes back at that "
        "address, with its token."
    ),
]


def serve_page(
    name: Annotated[
        str, typer.Argument(help="The run's id, or a bundle. \\[default: the latest run]", metavar="RUN|BUNDLE")
    ] = "",
    state: State = Path(".dart"),
    config: RunConfig = None,
    host: Annotated[str, typer.Option(help="The address to listen on; beyond loopback with TLS only.")] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(help="The port; 0: any. \\[default: ui.port]", min=0, max=65535)] = None,
    certificate: Annotated[Path | None, typer.Option(help="The server's certificate (PEM).")] = None,
    key: Annotated[Path | None, typer.Option(help="The key of --certificate.")] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option("--allow-host", help="A further name by which the page is asked for.")
    ] = None,
    behind_proxy: BehindProxy = False,
    address_file: AddressFile = None,
    token_file: TokenFile = None,
    takes_feedback: TakesFeedback = False,
    feedback_token_file: FeedbackTokenFile = None,
    export: Annotated[
        Path | None,
        typer.Option(
            help="Write the page with the report into this one file, which opens from disk, and end.", metavar="FILE"
        ),
    ] = None,
    against: Annotated[
        str, typer.Option(help="A second run or bundle, for the page Compare.", metavar="RUN|BUNDLE")
    ] = "",
    alone: Annotated[bool, typer.Option("--alone", help="List and open no other run or bundle of the folder.")] = False,
    as_json: AsJson = False,
) -> None:
    """Serve the live web page of a run, or of a bundle, until Ctrl-C; it only reads, unless with --feedback."""
    from console.launch.folder_catalog import FolderCatalog
    from console.views.page.guard import Guard, WriteRight
    from dart_streams.telemetry import setup

    log_to_stderr()
    source = source_of(name, state, config)
    other = source_of(against, state, None) if against else None
    intake = open_intake(source, export) if takes_feedback else None
    if export is not None:
        asyncio.run(write_file(source, other, export))
        return show_json({"file": str(export)}) if as_json else note(f"open {export}")
    tls = tls_context(host, certificate, key, behind_proxy=behind_proxy)
    before = read_address(address_file)
    listener = open_listener(host, source.config.ui.port if port is None else port, before, any_free=port is None)
    number = listener.getsockname()[1]
    token, hosts = read_token(token_file) or before.token, frozenset([host, *(allow_host or [])])
    written = read_token(feedback_token_file, "--feedback-token-file") or before.feedback_token
    right = WriteRight(number, written) if intake else None
    guard = Guard(hosts, number, tls=tls is not None, token=token, behind_proxy=behind_proxy, right=right)
    reached = ANY_ADDRESS.get(host, host)
    base = f"{'https' if tls else 'http'}://{f'[{reached}]' if ':' in reached else reached}:{number}/"
    address = address_of(guard, base, shown=(token_file is None, feedback_token_file is None))
    announce(address, address_file, as_json=as_json)
    os.nice(NICENESS)
    setup.start_logs("ui")
    folder = Path(source.config.run.state_dir) if config is not None else state
    catalog = None if alone else FolderCatalog(folder, source, *([other] if other is not None else []))
    asyncio.run(serve(source, other, guard, listener, tls, intake, catalog))


def open_intake(source: RunSource, export: Path | None) -> FeedbackIntake:
    """Return the intake for feedback on a run; raise UserError for one that takes none, and for a file."""
    from console.cli.feedback import author_name
    from console.views.page.feedback_intake import FeedbackIntake

    if export is not None:
        raise UserError("--export writes a page that only reads: leave --feedback out")
    return FeedbackIntake(source, author_name(""))


def source_of(name: str, state: Path, config: Path | None) -> RunSource:
    """Return the source of a bundle if ``name`` is its file, else of a run's topics and store."""
    from console.runs.bundle import Bundle
    from console.runs.run_folder import RunFolder

    if name and Path(name).is_file():
        if config is not None:
            raise UserError(f"{name} is a bundle, which has its own configuration: leave --config out")
        from console.views.page.bundle_source import BundleSource

        return BundleSource(Bundle(Path(name)))
    from console.views.page.live_source import LiveSource

    if config is not None:
        if name:
            raise UserError("a run and --config name two deployments: give one of them")
        settings = read_config(config)
        folder = RunFolder(settings.run.folder)
        return LiveSource(settings, folder)
    found = find_run(name, state)
    return LiveSource(found.config(), found)


def tls_context(
    host: str, certificate: Path | None, key: Path | None, *, behind_proxy: bool = False
) -> ssl.SSLContext | None:
    """Return the server's TLS context, or None; raise :class:`ConfigError` for a network address without TLS."""
    from dart_streams.config.connections import is_loopback

    if certificate is None and key is None:
        if not is_loopback(host) and not behind_proxy:
            raise ConfigError(
                f"--host {host} can be reached from other machines, and the token and all screens would travel in the "
                "clear: give --certificate and --key, keep 127.0.0.1 with a tunnel (ssh -L), or say --behind-proxy"
            )
        return None
    if certificate is None or key is None:
        raise ConfigError("--certificate and --key go together")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"--certificate {certificate} with --key {key} can't be used: {error}") from None
    return context


def open_listener(host: str, port: int, before: PageAddress, *, any_free: bool) -> socket.socket:
    """Return a listening socket on the port of ``before`` if it is free and no port is named.

    Otherwise listen on ``port``, or with ``any_free`` on the first free one from it on. Raises
    :class:`ServiceUnavailable` if none is free.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    wanted = [*range(port, port + (TRIED_PORTS if any_free and port else 1))]
    known = urlsplit(before.address).port
    for number in [known, *wanted] if known and (any_free or not port) else wanted:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, number))
            listener.listen(64)
            return listener
        except OSError as error:
            listener.close()
            reason, number_taken = error.strerror, error.errno in (errno.EADDRINUSE, errno.EACCES)
    other = "--port" if number_taken else "--host"
    raise ServiceUnavailable(f"the page can't listen on {host} port {port}: {reason}; choose another with {other}")


def address_of(guard: Guard, base: str, shown: tuple[bool, bool]) -> PageAddress:
    """Return the addresses to read and to give feedback, each with its token if that is ``shown``.

    Raises UserError if both have the same token.
    """
    url = f"{base}?token={guard.token}" if shown[0] else base
    if (right := guard.right) is None:
        return PageAddress(url=url, address=base, token=guard.token)
    if right.token == guard.token:
        raise UserError("--feedback-token-file has the token of the page that only reads: give it another one")
    writes = f"{base}?token={right.token}" if shown[1] else base
    return PageAddress(url=url, address=base, token=guard.token, feedback_url=writes, feedback_token=right.token)


async def serve(
    source: RunSource,
    other: RunSource | None,
    guard: Guard,
    listener: socket.socket,
    tls: ssl.SSLContext | None,
    intake: FeedbackIntake | None,
    catalog: RunCatalog | None,
) -> None:
    """Serve until SIGTERM or Ctrl-C; raise the error that ends a source."""
    from console.launch.services import jars
    from console.views.page.assets import PLOTS_MISSING, load_assets
    from console.views.page.server import PageServer
    from console.views.page.take_over_route import load_take_over_files
    from dart_streams.http_bounds import serve_bounded
    from dart_streams.telemetry.health_server import answering_probes
    from dart_streams.telemetry.process_health import ProcessHealth
    from workers.runtime import lifecycle

    health = ProcessHealth(lifecycle.TURN_BOUND_S)
    stop = lifecycle.stop_on_signals()
    files = load_assets(jars.plots_folder()) | (load_take_over_files() if intake else {})
    if not files["/vendor/uPlot.iife.min.js"].data:
        note(PLOTS_MISSING)
    reading = {"source": source.run()} | ({"other": other.run()} if other is not None else {})
    application = PageServer(source, guard, files, other, intake, catalog).application()
    with answering_probes(health):
        async with serve_bounded(application, listener, tls):
            turns = lifecycle.note_turns(health, lambda: "")
            await lifecycle.run_until_first_exit(stop.wait(), health=turns, **reading)


async def write_file(source: RunSource, other: RunSource | None, path: Path) -> None:
    """Write the page into one file; raise :class:`ServiceUnavailable` if its source does not answer."""
    from console.launch.services import jars
    from console.views.page import export
    from console.views.page.assets import PLOTS_MISSING, load_assets

    if not path.parent.is_dir():
        raise UserError(f"--export {path}: there is no folder {path.parent}")
    if not (plots := jars.plots_folder()):
        note(PLOTS_MISSING)
    sources = [source, *([other] if other is not None else [])]
    reading = [asyncio.create_task(one.run()) for one in sources]
    try:
        for one, task in zip(sources, reading, strict=True):
            await export.wait_until_read(one, task)
        await export.write(source, load_assets(plots), path, other)
    finally:
        await cancel_tasks(*reading)
        for one in sources:
            await one.close()
