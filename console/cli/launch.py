"""``dart-streams launch``: scripts that start a deployment's processes on nodes or on a cluster with Slurm."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from console.cli.options import Recipes, Settings, SimulatedGpus, SimulatedMemory, read_config
from console.cli.output import note, print_line
from dart_streams.errors import UserError


def write_launch(
    target: Annotated[Literal["slurm", "local"], typer.Argument(help="Batch scripts, or a script for each node.")],
    config: Annotated[Path, typer.Argument(help="Configuration file.")],
    output: Annotated[Path | None, typer.Option(help="Folder of the scripts, which all nodes share.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the scripts, and write nothing.")] = False,
    name: Annotated[str, typer.Option("--id", help="The run's id. \\[default: run.id]")] = "",
    recipe: Recipes = None,
    settings: Settings = None,
    gpus: SimulatedGpus = None,
    gpu_memory: SimulatedMemory = 80.0,
) -> None:
    """Write scripts that start every process of a deployment with its GPUs, and measure the run.

    `local` writes a script for each node. `slurm` writes job arrays of environments and rollout workers, a job of the
    trainer, and a job of recorder, curator and monitor; submit.sh submits them. Processes are placed as `run` does.
    """
    from console.launch.launch_plan import plan_launch, write_scripts
    from console.launch.node_scripts import node_scripts
    from console.launch.slurm_scripts import slurm_scripts
    from dart_streams.config.files import set_keys

    if dry_run == (output is not None):
        raise UserError("give --output DIR, where the scripts are written, or --dry-run, which prints them")
    chosen = config, recipe or (), settings or ()
    folder = output or Path("launch")
    plan = plan_launch(read_config(*chosen), set_keys(*chosen), folder, name, gpus=gpus, gib=gpu_memory)
    scripts = (slurm_scripts if target == "slurm" else node_scripts)(plan)
    if dry_run:
        for file, text in scripts.items():
            print_line(f"# ---- {folder / file}\n{text}")
    else:
        write_scripts(plan, scripts)
        note(f"wrote {', '.join(scripts)} and config.toml into {folder}")
    for text in plan.placement.notes:
        note(text)
