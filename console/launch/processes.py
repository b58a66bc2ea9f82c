"""The processes of a run with their command lines, and its first policy, which is built once and cached.

The tiny policy is built in the model environment, from demonstrations under a separate topic prefix.
"""

import asyncio
import sys
from importlib.util import find_spec
from pathlib import Path

import msgspec

from console.launch.supervisor import ProcessSpec, Supervisor
from console.runs import run_folder as folders
from console.runs.run_folder import RunFolder
from console.sizing.placement import Placement, has_trainer
from dart_streams.bus import admin
from dart_streams.config import Config, Tasks
from dart_streams.errors import UserError
from dart_streams.policy import recipe
from dart_streams.policy.hub_models import hub_model

BOOTSTRAP_FILE = "bootstrap.toml"
NOT_PLACED = Placement()
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
    """Find the programs of the sibling environments of ``prefix``.

    An environment of another name, as in an image, has no siblings: it is that of streams, and with vLLM of the model.
    """
    homes = {name: prefix.parent / name for name in ("streams", "model", "data")}
    if prefix.name not in homes:
        homes |= dict.fromkeys(("streams", "model") if find_spec("vllm") else ("streams",), prefix)
    return Programs(*(home / "bin" / "dart-streams" for home in homes.values()))


def refuse_missing(config: Config, found: Programs) -> None:
    """Raise UserError if an environment is missing that a process of ``config`` runs in."""
    for program in [found.streams, found.model] if needs_model(config) else [found.streams]:
        if not program.exists():
            image = "the command in the model's image (`docker compose run --rm rollout ...`)"
            raise UserError(f"{program} is missing: run `make setup`, or {image}")
    if config.tracker.tool and not found.data.exists():
        raise UserError(f"{found.data} is missing, which tracker.tool {config.tracker.tool!r} needs: run `make data`")


def processes_of(
    config: Config, config_file: Path, found: Programs, placement: Placement = NOT_PLACED, node: int = 0
) -> ProcessSet:
    """Return the processes of ``config`` on a node, with their devices; all but rollout and trainer are on the first.

    Raises :class:`UserError` if an environment is missing.
    """
    refuse_missing(config, found)
    return list_processes(config, config_file, found, placement, node)


def list_processes(
    config: Config, config_file: Path, found: Programs, placement: Placement = NOT_PLACED, node: int = 0
) -> ProcessSet:
    """Return the processes as :func:`processes_of`, whether or not their programs are there."""

    def worker(
        kind: str, number: int, program: Path = found.streams, *, last: bool = False, optional: bool = False
    ) -> ProcessSpec:
        name = f"{kind}-{number}"
        command = (str(program), "worker", kind, "--config", str(config_file), "--id", name)
        environment = placement.of_worker(number) if kind == "rollout" else placement.environment()
        return ProcessSpec(name, command, last, optional, environment)

    engine = found.model if needs_model(config) else found.streams
    # Without training, the trainer still publishes the weights to evaluate, unless the engine has its own.
    command = (str(found.model), "train", "--config", str(config_file))
    trainer = (ProcessSpec("trainer", command, environment=placement.environment(placement.trainer)),)
    shared = ProcessSet(
        rollout=tuple(
            worker("rollout", number, engine) for number in placement.workers_of(node, config.rollout.workers)
        ),
        trainer=trainer if has_trainer(config) else (),
    )
    if node:
        return shared
    return msgspec.structs.replace(
        shared,
        env=tuple(worker("env", number) for number in range(config.env.workers)),
        recorder=(worker("recorder", 0, last=True),),
        curator=(worker("curator", 0),) if config.run.trains else (),
        monitor=(worker("monitor", 0),),
        ui=(page_of(config_file, found, placement),) if config.ui.enabled else (),
        # The tracker stops last, to read all records.
        tracker=(worker("tracker", 0, found.data, last=True, optional=True),) if config.tracker.tool else (),
    )


def needs_model(config: Config) -> bool:
    """Return whether rollout workers need the policy's directory and the model environment."""
    return config.rollout.engine == "vllm" or (config.rollout.engine == "openai" and config.rollout.openai.trainable)


def page_of(config_file: Path, found: Programs, placement: Placement) -> ProcessSpec:
    """Return the optional process that serves the run's web page."""
    folder = config_file.parent
    place = ("--state", str(folder.parents[1]), "--address-file", str(folder / PAGE_FILE))
    command = (str(found.streams), "ui", folder.name, *place)
    return ProcessSpec("ui", command, optional=True, environment=placement.environment())


def policy_processes(
    config: Config, config_file: Path, found: Programs, placement: Placement = NOT_PLACED
) -> tuple[ProcessSpec, ...]:
    """Return the processes that make the tiny policy: helpers, and last the one that builds it, which ends."""
    run = list_processes(config, config_file, found, placement)
    helpers = (msgspec.structs.replace(spec, name=f"policy-{spec.name}") for spec in (run.env[0], run.recorder[0]))
    command = (str(found.model), "policy", "build", "--config", str(config_file))
    build = ProcessSpec("policy", command, environment=placement.environment(placement.trainer[:1]))
    return *(msgspec.structs.replace(spec, last=False) for spec in helpers), build


async def find_policy(
    folder: RunFolder, supervisor: Supervisor, found: Programs, placement: Placement = NOT_PLACED
) -> str:
    """Write the policy's path into the run's configuration, building the policy if needed; return its description."""
    config = folder.config()
    how = ""
    if config.policy.path:
        path = config.policy.path if hub_model(config.policy.path) else str(recipe.named_policy(config))
    else:
        tiny, how = recipe.tiny_policy_folder(config, folder.tasks()).absolute(), " (cached)"
        path = str(tiny)
        if not await asyncio.to_thread(tiny.is_dir):
            await build_policy(folder, supervisor, found, placement)
            how = " (built)"
    settings = msgspec.structs.replace(config.policy, path=path)
    folders.write_toml(
        folder.config_file, msgspec.structs.replace(config, policy=settings, tasks=relative_tasks(config))
    )
    return f"policy {path}{how}"


async def build_policy(folder: RunFolder, supervisor: Supervisor, found: Programs, placement: Placement) -> None:
    """Build the tiny policy, beside an environment worker and a recorder."""
    config = folder.config()
    bus = config.bus.of_demonstrations
    file = folder.path / BOOTSTRAP_FILE
    folders.write_toml(file, msgspec.structs.replace(config, bus=bus, tasks=relative_tasks(config)))
    await asyncio.to_thread(admin.apply_all, bus)
    refuse_missing(config, found)
    *helpers, build = policy_processes(config, file, found, placement)
    await supervisor.start(helpers)
    try:
        await supervisor.run_once(build)
    finally:
        await supervisor.stop(*(spec.name for spec in helpers))


def relative_tasks(config: Config) -> Tasks:
    """Return the task settings with the file's path relative to the configuration file."""
    return msgspec.structs.replace(config.tasks, file="tasks.toml")
