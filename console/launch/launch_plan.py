"""A deployment that scripts start: its configuration for all nodes, and the processes of each. Nothing is written."""

from collections.abc import Container
from pathlib import Path

import msgspec

from console.launch import hub_policy, placed_run, processes
from console.launch.processes import ProcessSet, Programs
from console.launch.services import local
from console.launch.training_run import required_steps
from console.runs import run_folder
from console.runs.run_folder import RunFolder
from console.sizing.placement import Placement
from dart_streams.config import Config
from dart_streams.config import tasks as task_sets
from dart_streams.curation.recipes import bind_rules
from dart_streams.errors import ConfigError
from dart_streams.policy import hub_models, recipe

CONFIG_FILE = "config.toml"
NO_GPU = "this machine has no GPU, so none is placed: --gpus or hardware.gpus says how many each machine has"


class LaunchPlan(msgspec.Struct, frozen=True):
    """The resolved configuration, its place, and the processes of each node, without the web page."""

    config: Config
    tasks_file: Path
    config_file: Path
    run: RunFolder
    programs: Programs
    placement: Placement
    nodes: tuple[ProcessSet, ...]

    @property
    def logs(self) -> Path:
        """The folder of the processes' logs."""
        return self.run.path / "logs"

    @property
    def local_services(self) -> list[str]:
        """The services that are on the loopback of one machine."""
        return [name for name, servers in local.servers_of(self.config).items() if local.is_own(servers)]


def plan_launch(
    config: Config, keys: Container[str], output: Path, name: str, *, gpus: int | None, gib: float
) -> LaunchPlan:
    """Return the plan of a deployment whose scripts are in ``output``; raise ConfigError for what cannot be launched.

    ``keys`` are those that the file sets; ``gpus`` of ``gib`` are those of a node, if given.
    """
    placed, placement = placed_run.place_run(config, keys, placed_run.find_gpus(config, gib, gpus))
    if not placement.placed and placed.hardware.gpus == "auto":
        placement = msgspec.structs.replace(placement, notes=(*placement.notes, NO_GPU))
    required_steps(placed)
    bind_rules(placed)
    task_sets.tasks_of(placed)
    refuse_unbuilt(placed)
    run = run_folder.folder_of(placed, name or placed.run.id)
    tasks_file, file = Path(placed.tasks.file), output.absolute() / CONFIG_FILE
    resolved = run.resolved(with_fixed_model(placed))
    found = processes.find_programs()
    nodes = [processes.list_processes(resolved, file, found, placement, node) for node in range(placement.nodes)]
    without_page = tuple(msgspec.structs.replace(each, ui=()) for each in nodes)
    return LaunchPlan(resolved, tasks_file, file, run, found, placement, without_page)


def refuse_unbuilt(config: Config) -> None:
    """Raise ConfigError for the tiny policy, which only ``dart-streams run`` builds."""
    if not config.policy.path and processes.needs_model(config) and not placed_run.is_built(config):
        raise ConfigError(
            "policy.path is empty, and scripts do not build the tiny policy: name a model directory, or run "
            "`dart-streams run` with this file first"
        )


def with_fixed_model(config: Config) -> Config:
    """Return a configuration whose model is the same for all processes: an absolute folder, or a commit of the hub.

    A model of the hub without a commit gets the one that the hub's cache has, if any.
    """
    path = Path(config.policy.path)
    if config.policy.path and path.is_dir():
        return hub_policy.with_path(config, str(path.absolute()))
    model = hub_models.hub_model(config.policy.path)
    commit = hub_models.find_commit(model) if model else ""
    return hub_policy.with_path(config, f"{model.repo}@{commit}") if model and commit else config


def write_scripts(plan: LaunchPlan, scripts: dict[str, str]) -> None:
    """Write the configuration, its tasks and the scripts into the folder of the configuration file.

    Raises :class:`ConfigError` for a model of the hub that names no commit.
    """
    if model := hub_models.hub_model(plan.config.policy.path):
        recipe.refuse_unpinned(model)
    folder = plan.config_file.parent
    folder.mkdir(parents=True, exist_ok=True)
    run_folder.write_tasks(plan.tasks_file, folder / "tasks.toml")
    run_folder.write_toml(plan.config_file, plan.config)
    for name, text in scripts.items():
        path = folder / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
