"""``dart-streams plan``: the size of a deployment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dart_streams.console.cli.options import AsJson
from dart_streams.console.cli.output import cell_text, show, show_json
from dart_streams.console.views.console import PlainConsole
from dart_streams.errors import UserError

if TYPE_CHECKING:
    from dart_streams.config import Config
    from dart_streams.console.sizing.capacity import Constant

DESKTOP = Path("deploy/config/workload/desktop.toml")


def plan(
    envs: Annotated[int, typer.Option("--envs", help="Environments (slots).", min=1)],
    workload: Annotated[Path, typer.Option(help="A configuration with a workload section.")] = DESKTOP,
    staleness: Annotated[int, typer.Option(help="Largest age of data in weight versions.", min=0)] = 4,
    changes: Annotated[list[str] | None, typer.Option("--set", help="Replace a constant: NAME=VALUE.")] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            help="A model directory, or the id of a fetched model: GPUs are counted as `doctor --model` does."
        ),
    ] = None,
    gpu_memory: Annotated[float, typer.Option(help="With --model: the memory of each GPU, in GiB.", min=1.0)] = 80.0,
    config: Annotated[
        Path | None, typer.Option(help="With --model: the deployment, for lengths, adapters and the second set.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Size a deployment: partitions, brokers, database nodes and GPUs for a number of environments, with formulas."""
    from rich.table import Table

    from dart_streams.config import Config, load
    from dart_streams.config import tasks as task_sets
    from dart_streams.console.sizing import capacity as planning

    base = load(workload)
    if base.workload is None:
        raise UserError(f"{workload} has no [workload]; deploy/config/workload/desktop.toml has one")
    tasks = task_sets.load(workload.parent / base.tasks.file)
    counted = gpu_constants(model, load(config) if config else Config(), gpu_memory) if model else []
    sizing = planning.plan(envs, base.workload, tasks, staleness, dict(map(change, changes or [])), counted)
    if as_json:
        show_json(sizing)
        return
    table = Table(title=f"{envs:,} environments, all of them busy", title_justify="left")
    for name in ("what", "needed", "formula"):
        table.add_column(name, overflow="fold", justify="right" if name == "needed" else "left")
    for figure in sizing.figures:
        table.add_row(
            figure.what,
            cell_text(f"{planning.format_number(figure.needed)} {figure.unit}".strip()),
            cell_text(figure.formula),
        )
    PlainConsole().print(table)
    show(sizing.constants, as_json=False, title="constants")


def gpu_constants(folder: Path, config: Config, gpu_gib: float) -> list[Constant]:
    """Return the constants that follow from a model's size; raise UserError with advice if it does not fit.

    The ranks of a rollout worker have a GPU each for weights, second set and cache; the trainer has as few as hold it.
    """
    from dart_streams.console.sizing.capacity import Constant
    from dart_streams.console.sizing.gpu_memory import MAX_GPUS, MemoryEstimate
    from dart_streams.console.sizing.model_files import read_shape, refuse_sharding
    from dart_streams.policy.recipe import local_folder

    local = local_folder(folder)
    refuse_sharding(local, config.rollout.vllm.tensor_parallel)
    estimate = MemoryEstimate(read_shape(local), config)
    found = estimate.split(MAX_GPUS, gpu_gib)
    if found is None:
        raise UserError(f"{folder} on GPUs of {gpu_gib:g} GiB: {estimate.advise(2, gpu_gib)}")
    place = estimate.second_set(gpu_gib)
    source = f"doctor --model {folder.name} --gpu-memory {gpu_gib:g}"
    beside = {"device": ", beside a second set of weights", "host": ", a second set in main memory", "none": ""}[place]
    cache = f"{source}: of {estimate.sequence:,} tokens{beside}"
    places = min(found.requests, config.rollout.max_in_flight)
    return [
        Constant("places", places, "requests", "counted", cache),
        Constant("gpus_a_worker", float(estimate.ranks), "GPUs", "counted", f"{source}: rollout.vllm.tensor_parallel"),
        Constant("trainer_gpus", found.trainer, "GPUs", "counted", f"{source}: the fewest that it fits on"),
    ]


def change(text: str) -> tuple[str, float]:
    """Read ``NAME=VALUE``."""
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise UserError(f"--set {text!r}: give NAME=NUMBER") from None
