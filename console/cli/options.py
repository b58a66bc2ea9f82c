"""Options that several commands share, and the configuration, run or bundle that they name."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dart_streams.errors import UserError

if TYPE_CHECKING:
    from console.runs.bundle import Bundle
    from console.runs.run_folder import RunFolder
    from dart_streams.config import Config

DEFAULT_CONFIG = Path("deploy/config/demo.toml")
CONFIG_VARIABLE = "DART_CONFIG"
"""Environment variable that names another default, as containers do."""
NO_RUN = "no run in {} yet: start one with `make demo`; that of `docker compose up` begins once its policy is built"
CHECKOUT = Path(__file__).parents[2]
"""The repository, if the package runs from one: commands work from any folder."""

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", help=f"Configuration file. \\[default: ${CONFIG_VARIABLE}, or {DEFAULT_CONFIG} if it exists]"
    ),
]
RunConfig = Annotated[
    Path | None, typer.Option("--config", "-c", help="The configuration of a deployment, instead of a run.")
]
Recipes = Annotated[
    list[str] | None, typer.Option("--recipe", help="Recipe whose keys win over the file's; may be repeated.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Set a key of the configuration; may be repeated.", metavar="KEY=VALUE"),
]
RunId = Annotated[str, typer.Option("--run", help="The run's id. \\[default: the latest]")]
FromBundle = Annotated[
    Path | None, typer.Option("--bundle", help="Read a bundle instead of the run's topics and files.")
]
State = Annotated[Path, typer.Option("--state", help="The state folder.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

SimulatedGpus = Annotated[
    int | None,
    typer.Option("--gpus", help="GPUs of a machine to plan for, there or not. \\[default: hardware.gpus]", min=0),
]
SimulatedMemory = Annotated[
    float, typer.Option("--gpu-memory", help="Memory of each GPU that is not there, in GiB.", min=1.0)
]


def split_names(text: str) -> list[str]:
    """Return the comma-separated names in an option's text."""
    return [name.strip() for name in text.split(",") if name.strip()]


def read_config(path: Path | None, recipe: Sequence[str] = (), settings: Sequence[str] = ()) -> Config:
    """Read a configuration with an absolute ``tasks.file``; without a path the default file, or the defaults.

    The keys of ``recipe`` win over those of the file, and ``settings`` (``key=value``) over both.
    """
    import msgspec

    from dart_streams.config import Config, load

    if path is None and (named := os.environ.get(CONFIG_VARIABLE)):
        path = Path(named)
    if path is None:
        path = next((path for path in (DEFAULT_CONFIG, CHECKOUT / DEFAULT_CONFIG) if path.exists()), None)
        if path is None:
            return Config()
    config = load(path, recipe=recipe, settings=settings)
    tasks = msgspec.structs.replace(config.tasks, file=str((path.parent / config.tasks.file).absolute()))
    return msgspec.structs.replace(config, tasks=tasks)


def find_run(run: str, state: Path) -> RunFolder:
    """Return a run's folder, by default the latest run's; raise :class:`UserError` if it does not exist."""
    from console.runs import run_folder

    if not run and not any((state / "runs").glob("*/config.toml")):
        raise UserError(NO_RUN.format(state))
    return run_folder.find(str(state), run or "latest")


def run_config(run: str, state: Path, config: Path | None) -> Config:
    """Return the configuration of a deployment, or of a run, by default the latest one."""
    if config is None:
        return find_run(run, state).config()
    if run:
        raise UserError("--run and --config name two deployments: give one of them")
    return read_config(config)


def run_or_bundle(run: str, state: Path, bundle: Path | None) -> tuple[Config, Bundle | None]:
    """Return the configuration of a run, with its present folder, or of a bundle and the bundle."""
    if bundle is None:
        folder = find_run(run, state)
        return folder.named(folder.config()), None
    from console.bundles.bundle_inputs import config_of
    from console.runs.bundle import Bundle

    source = Bundle(bundle)
    return config_of(source), source
