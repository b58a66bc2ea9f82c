"""``dart-streams up`` and ``down``: the local Kafka and Cassandra."""

from pathlib import Path
from typing import Annotated

import typer

from console.cli.options import AsJson, ConfigFile, read_config
from console.cli.output import note, show
from dart_streams.errors import UserError


def start_services(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Start the local Kafka and Cassandra, if they do not run yet, and wait until they answer.

    One that answers already and was not started by this command is left out.
    """
    from console.launch.services import local

    show(local.start_own(read_config(config), notify=note), as_json=as_json)


def stop_services(
    config: ConfigFile = None,
    wipe: Annotated[bool, typer.Option("--wipe", help="Remove their data too.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Stop them although a run uses them.")] = False,
) -> None:
    """Stop the local Kafka and Cassandra, unless a run of the state folder uses them."""
    from console.launch.run_list import is_running
    from console.launch.services import local
    from console.runs.run_folder import all_runs

    runs = all_runs(Path(read_config(config).run.state_dir) / "runs")
    if not force and (using := [folder.id for folder in runs if is_running(folder)]):
        raise UserError(
            f"run {', '.join(using)} is under way, and would lose its services: end it first with `dart-streams runs "
            f"stop {using[0]}`, or stop them all the same with --force"
        )
    stopped = local.stop_services(read_config(config), wipe=wipe, notify=note)
    note(f"stopped {' and '.join(stopped)}" if stopped else "nothing was running")
