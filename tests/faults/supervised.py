"""A run of the whole circle as a process, as ``dart-streams run`` is one, with the stand-in for the trainer.

Usage: ``python -m tests.faults.supervised FOLDER`` with the folder of a run (new or resumed). One with a policy has the
real trainer.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from console.launch import process_registry, processes
from console.launch.run_start import write_report
from console.launch.session import Session, run_session
from console.launch.supervisor import ProcessSpec
from console.runs import run_folder
from console.runs.run_folder import RunFolder
from console.views.console import PlainConsole
from dart_streams.errors import UserError
from tests.faults.circle import PREFIXES

STAND_IN = "benchmarks.stand_in_trainer"


def session_of(made: RunFolder, console: Console) -> Session:
    cast = processes.processes_of(made.config(), made.config_file, processes.find_programs())
    if not made.config().policy.path:
        stand_in = ProcessSpec("trainer", (sys.executable, "-m", STAND_IN, str(made.config_file)))
        cast = msgspec.structs.replace(cast, trainer=(stand_in,))
    return Session(made, prefixed(cast, json.loads(os.environ.get(PREFIXES, "{}"))), write_report, console)


def prefixed(cast: processes.ProcessSet, prefixes: Mapping[str, Sequence[str]]) -> processes.ProcessSet:
    """Put something before the command lines of some kinds of processes."""
    changed = {
        kind: tuple(msgspec.structs.replace(one, command=(*before, *one.command)) for one in getattr(cast, kind))
        for kind, before in prefixes.items()
    }
    return msgspec.structs.replace(cast, **changed)


if __name__ == "__main__":
    folder = RunFolder(Path(sys.argv[1]))
    process_registry.end_leftovers(folder.path.parent)
    try:
        with run_folder.lock_folder(folder.path):
            run_session(folder, lambda _: session_of(folder, PlainConsole(width=160, lasting=True)))
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)
