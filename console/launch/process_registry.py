"""The processes of a run, on disk: the next command ends those that a killed supervisor left."""

import os
from pathlib import Path
from typing import Self

import msgspec
import psutil

from console.launch.services.daemon import Birth, birth_of, is_alive, stop
from console.launch.services.jars import SERVICES
from console.runs.run_folder import is_locked
from dart_streams.config.text import MALFORMED

SAME_START_S = 2.0
END_S = 5.0


class ProcessIdentity(msgspec.Struct, frozen=True):
    """The identity of a process beyond its pid, which is reused; the wall clock's ``started_s`` without ``born``."""

    name: str
    pid: int
    started_s: float
    command: tuple[str, ...]
    born: Birth | None = None

    @classmethod
    def of(cls, name: str, pid: int) -> Self:
        """Identify a running process; raise psutil.NoSuchProcess if there is none."""
        process = psutil.Process(pid)
        return cls(name, pid, process.create_time(), tuple(process.cmdline()), birth_of(pid))

    def process(self) -> psutil.Process | None:
        """Return the identified process, None if it is gone or its pid has another owner."""
        try:
            process = psutil.Process(self.pid)
            # A process that was identified in the middle of its exec had no command yet.
            same = self.command in ((), tuple(process.cmdline()))
            return process if same and self._began_with(process) and is_alive(process) else None
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return None

    def _began_with(self, process: psutil.Process) -> bool:
        if self.born is not None and (born := birth_of(self.pid)) is not None:
            return born == self.born
        return abs(process.create_time() - self.started_s) < SAME_START_S


class ProcessRegistry(msgspec.Struct, frozen=True):
    """The processes of a run, and the local services that its supervisor started; true of earlier versions: both."""

    supervisor: ProcessIdentity
    children: tuple[ProcessIdentity, ...] = ()
    services: tuple[str, ...] | bool = ()

    @property
    def service_names(self) -> tuple[str, ...]:
        """The services that the supervisor started."""
        return (SERVICES if self.services else ()) if isinstance(self.services, bool) else self.services


def this_process() -> ProcessIdentity:
    """Return the identity of the calling process."""
    return ProcessIdentity.of("supervisor", os.getpid())


def read(path: Path) -> ProcessRegistry | None:
    """Return the registry in a file, None if it is missing or torn."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=ProcessRegistry)
    except (OSError, *MALFORMED):
        return None


def living_runs(runs: Path, but: Path) -> list[str]:
    """Return the ids of runs with a live supervisor, except the one in the folder ``but``."""
    folders = (path.parent for path in sorted(runs.glob("*/processes.json")) if not path.parent.is_symlink())
    found = ((folder, read(folder / "processes.json")) for folder in folders if folder != but)
    return [folder.name for folder, registry in found if registry and lives(folder, registry)]


def lives(folder: Path, registry: ProcessRegistry) -> bool:
    """Return whether the supervisor of a run is alive, here or in another container of this machine."""
    return registry.supervisor.process() is not None or is_locked(folder)


def end_leftovers(runs: Path) -> tuple[list[str], tuple[str, ...]]:
    """End processes without a supervisor; return them as ``run/process``, and the services that their runs started."""
    ended: list[str] = []
    services: tuple[str, ...] = ()
    for path in sorted(runs.glob("*/processes.json")):
        registry = read(path)
        if registry is None or lives(path.parent, registry):
            continue
        services = tuple(dict.fromkeys((*services, *registry.service_names)))
        left = {identity.name: process for identity in registry.children if (process := identity.process())}
        ended += [f"{path.parent.name}/{name}" for name in left]
        stop(list(left.values()), END_S)
        path.unlink(missing_ok=True)
    return ended, services
