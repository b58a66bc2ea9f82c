"""``dart-streams up`` and ``down``: the local Kafka and Cassandra."""

from typing import Annotated

import typer

from console.cli.options import AsJson, ConfigFile, read_config
from console.cli.output import note, show


def start_services(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Start the local Kafka and Cassandra, if they do not run yet, and wait until they answer.

    One that answers already and was not started by this command is left out.
    """
    from console.launch.services import local

    show(local.start_own(read_config(config), notify=note), as_json=as_json)


def stop_services(
    config: ConfigFile = None, wipe: Annotated[bool, typer.Option("--wipe", help="Remove their data too.")] = False
) -> None:
    """Stop the local Kafka and Cassandra."""
    from console.launch.services import local

    stopped = local.stop_services(read_config(config), wipe=wipe, notify=note)
    note(f"stopped {' and '.join(stopped)}" if stopped else "nothing was running")
