"""A run's folder: the configuration of all processes, tasks, and the journal of phases."""

import contextlib
import fcntl
import os
import secrets
import shlex
import shutil
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import msgspec
import tomli_w

from console.runs.provenance import Provenance
from console.runs.resumption import changed_keys, refuse_changes
from dart_streams import config as configuration
from dart_streams.config import Config
from dart_streams.config import tasks as task_sets
from dart_streams.config.deployment import RUN_ID
from dart_streams.config.tasks import TaskSet
from dart_streams.disk_room import make_private, refusal_of
from dart_streams.errors import ConfigError, UserError
from dart_streams.fsync import replace_file

DEFAULT_STATE = Path(".dart")


class RunPhase(msgspec.Struct, frozen=True):
    """A phase of the run; ``ended_ms`` is null before its end."""

    name: str
    started_ms: int
    ended_ms: int | None = None


LAST_LINE_CHARACTERS = 300


class ProcessDeaths(msgspec.Struct, frozen=True):
    """Number of deaths of a process by one signal or exit code, and the last log line and time of the newest.

    ``restarts`` are those after which it was started again; None in journals of earlier versions.
    """

    process: str
    reason: str
    times: int
    last_line: str
    at_ms: int
    restarts: int | None = None


class PhaseLog(msgspec.Struct, frozen=True):
    """A run's phases, evaluated versions, deaths and starts.

    ``before_model`` is the endpoint's model evaluated before, or empty.
    """

    phases: tuple[RunPhase, ...] = ()
    before_version: int | None = None
    after_version: int | None = None
    outcome: str = "unfinished"
    before_model: str = ""
    deaths: tuple[ProcessDeaths, ...] = ()
    starts: tuple[Provenance, ...] = ()

    def with_start(self, start: Provenance) -> Self:
        """Return the journal with another start of the run."""
        return msgspec.structs.replace(self, starts=(*self.starts, start))

    def with_death(self, process: str, reason: str, last_line: str, now_ms: int, *, restarts: bool = True) -> Self:
        """Return the journal with another death of a process, and whether it is started again."""
        same = [death for death in self.deaths if (death.process, death.reason) == (process, reason)]
        times = 1 + sum(death.times for death in same)
        again = restarts + sum(death.restarts or 0 for death in same)
        newest = ProcessDeaths(process, reason, times, last_line[:LAST_LINE_CHARACTERS], now_ms, again)
        others = (death for death in self.deaths if death not in same)
        return msgspec.structs.replace(self, deaths=(*others, newest))

    def resume(self) -> Self:
        """Return the journal of a run that goes on: its outcome is open again."""
        return msgspec.structs.replace(self, outcome="unfinished")

    def begin(self, name: str, now_ms: int) -> Self:
        """Return the journal with a new phase."""
        return msgspec.structs.replace(self, phases=(*self.phases, RunPhase(name, now_ms)))

    def end(self, now_ms: int) -> Self:
        """Return the journal with the end of its newest phase."""
        *earlier, last = self.phases
        return msgspec.structs.replace(self, phases=(*earlier, msgspec.structs.replace(last, ended_ms=now_ms)))

    def phase(self, name: str) -> RunPhase | None:
        """Return the newest phase of this name."""
        return next((phase for phase in reversed(self.phases) if phase.name == name), None)


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.toml"
        self.journal_file = path / "journal.json"
        self.topics_file = path / "topics.json"
        self.restored_file = path / "restored"

    @property
    def id(self) -> str:
        """The run's id."""
        return self.path.name

    @property
    def resume_command(self) -> str:
        """Command that resumes the run from the current directory."""
        state = self.path.absolute().parents[1]
        place = "" if state == DEFAULT_STATE.absolute() else f" --state {shlex.quote(str(state))}"
        return f"dart-streams run --resume {self.id}{place}"

    def config(self, settings: Sequence[str] = ()) -> Config:
        """Read the resolved configuration, with ``tasks.file`` made absolute and ``key=value`` settings over it."""
        config = configuration.load(self.config_file, recorded=True, settings=settings)
        tasks = msgspec.structs.replace(config.tasks, file=str(self.path / config.tasks.file))
        return msgspec.structs.replace(config, tasks=tasks)

    def named(self, config: Config) -> Config:
        """Return a configuration with the run's id and state folder."""
        run = msgspec.structs.replace(config.run, id=self.id, state_dir=str(self.path.parents[1]))
        return msgspec.structs.replace(config, run=run)

    def resolved(self, config: Config) -> Config:
        """Return the configuration that the run's processes read: with its id, folder, topics and tasks."""
        return msgspec.structs.replace(
            self.named(config),
            bus=msgspec.structs.replace(config.bus, prefix=f"dart.{self.id}."),
            tasks=msgspec.structs.replace(config.tasks, file="tasks.toml"),
        )

    def tasks(self) -> TaskSet:
        """Read the run's task set."""
        return task_sets.load(Path(self.config().tasks.file))

    def journal(self) -> PhaseLog:
        """Read the journal so far."""
        try:
            return msgspec.json.decode(self.journal_file.read_bytes(), type=PhaseLog)
        except FileNotFoundError:
            return PhaseLog()

    def topic_ids(self) -> dict[str, str]:
        """Read the broker's ids of the run's topics at its last start; older runs have none."""
        try:
            return msgspec.json.decode(self.topics_file.read_bytes(), type=dict[str, str])
        except FileNotFoundError:
            return {}

    def write_journal(self, journal: PhaseLog) -> None:
        """Replace the journal; raise UserError if it cannot be written."""
        try:
            write_json(self.journal_file, journal)
        except OSError as error:
            refusal = refusal_of(error, self.journal_file.parent) or f"{self.journal_file} can't be written: {error}"
            raise UserError(f"{refusal}, then go on with `{self.resume_command}`") from error


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON in one step."""
    replace_file(path, msgspec.json.format(msgspec.json.encode(value)))


@contextlib.contextmanager
def lock_folder(path: Path) -> Iterator[None]:
    """Lock the folder of a run, if it exists, so that only one supervisor writes its state.

    The kernel releases the lock at any end of this process. Raises UserError if another process holds it.
    """
    if not path.is_dir():
        yield
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UserError(
            f"run {path.resolve().name!r} still lives: end it first "
            "(Ctrl-C in its terminal; `fg` before that if it is stopped there)"
        ) from None
    try:
        yield
    finally:
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Return whether a supervisor holds the folder of a run."""
    try:
        with lock_folder(path):
            return False
    except UserError:
        return True


def new_id() -> str:
    """Return a new run id, which sorts by time and can be part of a topic's name."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def folder_of(config: Config, run_id: str) -> RunFolder:
    """Return the folder of a run, which need not exist; raise ConfigError for an id that cannot name topics."""
    if not RUN_ID.match(run_id):
        raise ConfigError(
            f"run id {run_id!r}: use letters, digits, '_' and, not first, '-', 194 at most and not 'latest': it is "
            "part of topic names and an argument of commands"
        )
    return RunFolder(Path(config.run.state_dir).absolute() / "runs" / run_id)


def create(config: Config, tasks_file: Path, run_id: str, *, resume: bool) -> RunFolder:
    """Create (or with ``resume`` reuse) the folder of a run, and point ``latest`` at it.

    Raises UserError if the id is taken or cannot name topics, there is no such run to resume, the configuration changes
    keys that it must keep, or the task set cannot be read.
    """
    folder = folder_of(config, run_id)
    if resume and not folder.config_file.exists():
        runs = folder.path.parent
        raise UserError(f"no run {run_id!r} to resume in {runs}: {newest_runs(runs)}")
    if not resume and folder.path.exists():
        raise UserError(f"run {run_id!r} exists: resume it with `{folder.resume_command}`, or choose another --id")
    if resume:
        refuse_changes(changed_keys(folder.config(), config), run_id)
    return prepare(folder, config, folder.path / "tasks.toml" if resume else tasks_file)


def attach(config: Config, tasks_file: Path) -> RunFolder:
    """Create (or reuse) the folder of the run that the configuration names; its processes may be running.

    Raises ConfigError if ``run.id`` and ``bus.prefix`` name different runs, or the task set cannot be read.
    """
    if config.bus.prefix != (prefix := f"dart.{config.run.id}."):
        raise ConfigError(
            f"bus.prefix {config.bus.prefix!r} is not that of run.id {config.run.id!r}: set it to {prefix!r}"
        )
    return prepare(RunFolder(Path(config.run.state_dir).absolute() / "runs" / config.run.id), config, tasks_file)


def prepare(folder: RunFolder, config: Config, tasks_file: Path) -> RunFolder:
    """Write the resolved configuration and the task set into a run's folder, and point ``latest`` at it.

    A folder that could not be written whole is removed if it is new. Raises UserError for a full or unwritable disk.
    """
    task_sets.tasks_of(config, tasks_file)
    is_new = not folder.path.exists()
    try:
        make_private(folder.path)
        if tasks_file != (target := folder.path / "tasks.toml"):
            write_tasks(tasks_file, target)
        write_toml(folder.config_file, folder.resolved(config))
        point_latest(folder.path.parent, folder.id)
    except OSError as error:
        if is_new:
            shutil.rmtree(folder.path, ignore_errors=True)
        raise refusal_of(error, folder.path) or error from None
    return folder


def read_latest(runs: Path) -> str:
    """Return the id that ``latest`` points at, empty without one."""
    with contextlib.suppress(OSError):
        return str((runs / "latest").readlink())
    return ""


def point_latest(runs: Path, run_id: str) -> None:
    """Point ``latest`` at a run, or remove it if the run is not there."""
    fresh = runs / ".latest"
    fresh.unlink(missing_ok=True)
    if run_id and (runs / run_id / "config.toml").exists():
        fresh.symlink_to(run_id)
        fresh.replace(runs / "latest")
    else:
        (runs / "latest").unlink(missing_ok=True)


@contextlib.contextmanager
def undo_latest(folder: RunFolder, before: str) -> Iterator[None]:
    """Point ``latest`` back at the run ``before`` if the body fails before the run has topics: nothing was recorded."""
    try:
        yield
    except BaseException as error:
        if not folder.topics_file.exists():
            with contextlib.suppress(OSError):
                point_latest(folder.path.parent, before)
        if isinstance(error, OSError) and (refusal := refusal_of(error, folder.path)):
            raise refusal from None
        raise


def write_tasks(source: Path, target: Path) -> None:
    """Copy a task file; the copy lists tasks from other folders."""
    file = task_sets.self_contained(source)
    if file.osworld is None:
        shutil.copyfile(source, target)
    else:
        target.write_text(format_toml(file), encoding="utf-8")


def write_toml(path: Path, config: Config) -> None:
    """Write a configuration in one step."""
    replace_file(path, format_toml(config).encode())


def format_toml(value: msgspec.Struct) -> str:
    """Return tables as TOML without the keys that are None."""
    return tomli_w.dumps(without_nulls(msgspec.to_builtins(value)))


def without_nulls(value: Any) -> Any:
    """Return nested tables without the keys that are None."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return value


def find(state_dir: str, run_id: str) -> RunFolder:
    """Return a run's folder by id (``latest``: the newest) or topic prefix; raise UserError with the newest ids."""
    runs = Path(state_dir).absolute() / "runs"
    name = run_id if (runs / run_id).is_dir() else run_id.rpartition(".")[2]
    path = (runs / name).resolve()
    if not (path / "config.toml").exists():
        raise UserError(f"no run {run_id!r} in {runs}: {newest_runs(runs)}")
    return RunFolder(path)


def all_runs(runs: Path) -> list[RunFolder]:
    """Return the runs in a folder, oldest first."""
    files = sorted(file for file in runs.glob("*/config.toml") if not file.parent.is_symlink())
    return [RunFolder(file.parent) for file in files]


def exported_files(folder: Path) -> list[Path]:
    """Return the files of a run's `metrics` or `traces`, and those of workers apart, at `env`, but no link out."""
    run = folder.parent
    apart = run.parent.parent / "env"
    others = [path.resolve() for path in (apart / "runs" / run.name / folder.name).glob("*.jsonl")]
    own = {path for path in others if path.is_file() and path.is_relative_to(apart.resolve())}
    return sorted(own.union(folder.glob("*.jsonl")))


def newest_runs(runs: Path) -> str:
    """Return the newest run ids as text."""
    names = [folder.id for folder in all_runs(runs)]
    return f"there are {', '.join(names[-5:])}" if names else "there is none yet"
