"""The processes of a run with their command lines, and its first policy, which is built once and cached.

The tiny policy is built in the model environment, from demonstrations under a separate topic prefix.
"""

import asyncio
import sys
from pathlib import Path

import msgspec

from dart_streams.bus import admin
from dart_streams.config import Config, Tasks
from dart_streams.console.launch.supervisor import ProcessSpec, Supervisor
from dart_streams.console.runs import run_folder as folders
from dart_streams.console.runs.run_folder import RunFolder
from dart_streams.errors import UserError
from dart_streams.policy import recipe

BOOTSTRAP_FILE = "bootstrap.toml"
PAGE_FILE = "ui.json"
"""File with the web page's address and token."""


class Programs(msgspec.Struct, frozen=True):
    """The ``dart-streams`` program of each virtual environment; ``data`` is for trackers."""

    streams: Path
    model: Path
    data: Path = Path(".venv/data/bin/dart-streams")


class ProcessSet(msgspec.Struct, frozen=True):
    """The processes of a run, by role."""

    env: tuple[ProcessSpec, ...] = ()
    recorder: tuple[ProcessSpec, ...] = ()
    rollout: tuple[ProcessSpec, ...] = ()
    trainer: tuple[ProcessSpec, ...] = ()
    curator: tuple[ProcessSpec, ...] = ()
    monitor: tuple[ProcessSpec, ...] = ()
    ui: tuple[ProcessSpec, ...] = ()
    tracker: tuple[ProcessSpec, ...] = ()


def find_programs(prefix: Path = Path(sys.prefix)) -> Programs:
    """Find the programs of the sibling environments of ``prefix``."""
    return Programs(*(prefix.parent / name / "bin" / "dart-streams" for name in ("streams", "model", "data")))


def processes_of(config: Config, config_file: Path, found: Programs) -> ProcessSet:
    """Return every process of ``config``; raise :class:`UserError` if an environment is missing."""
    model_side = needs_model(config)
    for program in [found.streams, found.model] if model_side else [found.streams]:
        if not program.exists():
            raise UserError(f"{program} is missing: run `make setup`")
    if config.tracker.tool and not found.data.exists():
        raise UserError(f"{found.data} is missing, which tracker.tool {config.tracker.tool!r} needs: run `make data`")

    def workers(
        kind: str, count: int, program: Path = found.streams, *, last: bool = False, optional: bool = False
    ) -> tuple[ProcessSpec, ...]:
        command = (str(program), "worker", kind, "--config", str(config_file), "--id")
        names = [f"{kind}-{number}" for number in range(count)]
        return tuple(ProcessSpec(name, (*command, name), last, optional) for name in names)

    # Without training, the trainer still publishes the weights to evaluate, unless the engine has its own.
    trainer = (ProcessSpec("trainer", (str(found.model), "train", "--config", str(config_file))),)
    return ProcessSet(
        env=workers("env", config.env.workers),
        recorder=workers("recorder", 1, last=True),
        rollout=workers("rollout", config.rollout.workers, found.model if model_side else found.streams),
        trainer=trainer if config.run.trains or not config.rollout.fixed_weights else (),
        curator=workers("curator", 1) if config.run.trains else (),
        monitor=workers("monitor", 1),
        ui=(page_of(config_file, found),) if config.ui.enabled else (),
        # The tracker stops last, to read all records.
        tracker=workers("tracker", 1, found.data, last=True, optional=True) if config.tracker.tool else (),
    )


def needs_model(config: Config) -> bool:
    """Return whether rollout workers need the policy's directory and the model environment."""
    return config.rollout.engine == "vllm" or (config.rollout.engine == "openai" and config.rollout.openai.trainable)


def page_of(config_file: Path, found: Programs) -> ProcessSpec:
    """Return the optional process that serves the run's web page."""
    folder = config_file.parent
    place = ("--state", str(folder.parents[1]), "--address-file", str(folder / PAGE_FILE))
    return ProcessSpec("ui", (str(found.streams), "ui", folder.name, *place), optional=True)


def build_command(config_file: Path, found: Programs) -> ProcessSpec:
    """Return the process that builds the tiny policy."""
    if not found.model.exists():
        raise UserError(f"{found.model} is missing: run `make setup`")
    return ProcessSpec("policy", (str(found.model), "policy", "build", "--config", str(config_file)))


async def find_policy(folder: RunFolder, supervisor: Supervisor, found: Programs) -> str:
    """Write the policy's path into the run's configuration, building the policy if needed; return its description."""
    config = folder.config()
    how = ""
    if config.policy.path:
        path = recipe.named_policy(config)
    else:
        path, how = recipe.tiny_policy_folder(config, folder.tasks()).absolute(), " (cached)"
        if not await asyncio.to_thread(path.is_dir):
            await build_policy(folder, supervisor, found)
            how = " (built)"
    settings = msgspec.structs.replace(config.policy, path=str(path))
    folders.write_toml(
        folder.config_file, msgspec.structs.replace(config, policy=settings, tasks=relative_tasks(config))
    )
    return f"policy {path}{how}"


async def build_policy(folder: RunFolder, supervisor: Supervisor, found: Programs) -> None:
    """Build the tiny policy, beside an environment worker and a recorder."""
    config = folder.config()
    bus = config.bus.of_demonstrations
    file = folder.path / BOOTSTRAP_FILE
    folders.write_toml(file, msgspec.structs.replace(config, bus=bus, tasks=relative_tasks(config)))
    await asyncio.to_thread(admin.apply_all, bus)
    run = processes_of(config, file, found)
    helpers = [ProcessSpec(f"policy-{spec.name}", spec.command) for spec in (run.env[0], run.recorder[0])]
    await supervisor.start(helpers)
    try:
        await supervisor.run_once(build_command(file, found))
    finally:
        await supervisor.stop(*(spec.name for spec in helpers))


def relative_tasks(config: Config) -> Tasks:
    """Return the task settings with the file's path relative to the configuration file."""
    return msgspec.structs.replace(config.tasks, file="tasks.toml")
