"""The policy a run starts from: the configured model, or the tiny one, built once and cached.

`dart-streams policy build` builds it in the model environment, from demonstrations that an environment worker and a
recorder produce under a topic prefix of their own.
"""

import asyncio
from pathlib import Path

import msgspec

from dart_streams.bus import admin
from dart_streams.config import Config, Tasks
from dart_streams.errors import ConfigError
from dart_streams.history import run_folder as folders
from dart_streams.history.run_folder import RunFolder
from dart_streams.launch.processes import Programs, policy_build, processes_of
from dart_streams.launch.supervisor import ProcessSpec, Supervisor
from dart_streams.policy import recipe

CONFIG_FILE = "bootstrap.toml"


async def policy(folder: RunFolder, supervisor: Supervisor, found: Programs) -> str:
    """Build the run's policy if it is missing, write its path into the run's configuration, and describe it."""
    config = folder.config()
    path = named(config) if config.policy.path else recipe.folder(config, folder.tasks()).absolute()
    how = "" if config.policy.path else " (cached)"
    if not await asyncio.to_thread(path.is_dir):
        await build(folder, supervisor, found)
        how = " (built)"
    settings = msgspec.structs.replace(config.policy, path=str(path))
    folders.write_toml(folder.config_file, msgspec.structs.replace(config, policy=settings, tasks=relative(config)))
    return f"policy {path}{how}"


def named(config: Config) -> Path:
    """Return the configured model directory; raise :class:`ConfigError` if it is none."""
    path = Path(config.policy.path).absolute()
    if not (path / "config.json").is_file():
        raise ConfigError(
            f"policy.path: {path} is no Hugging Face model directory (it has no config.json): correct the path, "
            "or leave policy.path empty for the tiny policy"
        )
    return path


async def build(folder: RunFolder, supervisor: Supervisor, found: Programs) -> None:
    """Build the tiny policy; an environment worker and a recorder run meanwhile."""
    config = folder.config()
    bus = msgspec.structs.replace(config.bus, prefix=f"{config.bus.prefix.rstrip('.')}-policy.")
    file = folder.path / CONFIG_FILE
    folders.write_toml(file, msgspec.structs.replace(config, bus=bus, tasks=relative(config)))
    await asyncio.to_thread(admin.apply_all, bus)
    run = processes_of(config, file, found)
    helpers = [ProcessSpec(f"policy-{spec.name}", spec.command) for spec in (run.env[0], run.recorder[0])]
    await supervisor.start(helpers)
    try:
        await supervisor.run_once(policy_build(file, found))
    finally:
        await supervisor.stop(*(spec.name for spec in helpers))


def relative(config: Config) -> Tasks:
    """Return the task settings with the file's path relative to the configuration file."""
    return msgspec.structs.replace(config.tasks, file="tasks.toml")
