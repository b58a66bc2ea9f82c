"""``dart-streams demonstrate``: play a task of a running run by hand, in a page on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from console.cli.options import AsJson, RunConfig, RunId, State, find_run, read_config
from console.cli.output import log_to_stderr, note, show_json
from dart_streams.errors import UserError

if TYPE_CHECKING:
    import socket

    from console.views.page.guard import Guard
    from console.views.play.player import PersonClient
    from dart_streams.config import Config
    from dart_streams.config.tasks import TaskSet

HOST = "127.0.0.1"
LEFT = "the person ended dart-streams demonstrate"


def demonstrate(
    task: Annotated[str, typer.Argument(help="The training task, such as `miniwob/click-test-2#17`.")],
    run: RunId = "",
    state: State = Path(".dart"),
    config: RunConfig = None,
    port: Annotated[int, typer.Option(help="The page's port on 127.0.0.1; 0: any.", min=0, max=65535)] = 0,
    lease: Annotated[
        float, typer.Option(help="Seconds without the open page after which an episode ends.", min=1.0, max=600.0)
    ] = 15.0,
    as_json: AsJson = False,
) -> None:
    """Serve a page on which you play a task of a running run, until Ctrl-C.

    Each episode takes a slot of the run, and is scored as any. A success goes to the experience pool.
    """
    from console.cli import page_address, ui
    from console.views.page.guard import Guard
    from console.views.play.player import PersonClient
    from dart_streams.telemetry import setup

    log_to_stderr()
    settings, tasks = deployment_of(run, state, config)
    chosen = tasks.get(task)
    if chosen.split == "heldout":
        raise UserError(f"{task} is held out: evaluation would measure the demonstration. Choose a training task")
    if not settings.curation.pool.enabled:
        note("curation.pool.enabled is false: only a recipe that imitates demonstrations learns from yours")
    listener = ui.open_listener(HOST, port, page_address.PageAddress(url="", address="", token=""), any_free=port == 0)
    number = listener.getsockname()[1]
    guard = Guard(frozenset([HOST]), number, tls=False)
    address = ui.address_of(guard, f"http://{HOST}:{number}/", (True, True))

    def announce() -> None:
        if as_json:
            show_json(address)
        else:
            note(f"play {chosen.task_id} at {address.url}")

    setup.start_logs("demonstrate")
    asyncio.run(serve(lambda: PersonClient(settings, chosen, lease), guard, listener, announce))


def deployment_of(run: str, state: Path, config: Path | None) -> tuple[Config, TaskSet]:
    """Return configuration and task set of a run, by default the latest one, or of a deployment."""
    from dart_streams.config import tasks

    if config is None:
        found = find_run(run, state)
        return found.config(), found.tasks()
    if run:
        raise UserError("--run and --config name two deployments: give one of them")
    settings = read_config(config)
    return settings, tasks.tasks_of(settings)


async def serve(
    make: Callable[[], PersonClient], guard: Guard, listener: socket.socket, announce: Callable[[], None]
) -> None:
    """Connect, announce the page and serve it until SIGTERM or Ctrl-C; raise the error that ends the connection."""
    from console.views.play.play_server import PlayServer, load_play_files
    from dart_streams.http_bounds import serve_bounded
    from workers.runtime import lifecycle

    stop = lifecycle.stop_on_signals()
    async with make() as player, serve_bounded(PlayServer(player, guard, load_play_files()).application(), listener):
        announce()
        await lifecycle.run_until_first_exit(stop.wait(), read=player.read(), life=player.show_life())
        await player.give_back(LEFT)
