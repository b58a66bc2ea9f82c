"""``dart-streams plan``: the size of a deployment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dart_streams.console.cli.options import AsJson
from dart_streams.console.cli.output import cell_text, note, show, show_json
from dart_streams.console.views.console import PlainConsole
from dart_streams.errors import UserError

if TYPE_CHECKING:
    from dart_streams.config import Config
    from dart_streams.console.sizing.capacity import Constant, Sizing

DESKTOP = Path("deploy/config/workload/desktop.toml")
DEPLOYMENT = Path("deploy/k8s/components/object-store/dart.toml")
BASE = Path("deploy/k8s/overlays/gpu")
BROWSER_MS = 15.6
"""CPU time of Chromium for a step, which an env worker of MiniWoB++ has in its pod (docs/performance.md)."""


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
        Path | None,
        typer.Option(
            help="The deployment: with --model for lengths, adapters and the second set; with --format kustomize the "
            f"file that the overlay changes. \\[default there: {DEPLOYMENT}]",
            show_default=False,
        ),
    ] = None,
    form: Annotated[
        Literal["table", "kustomize"], typer.Option("--format", help="A table, or an overlay for Kubernetes.")
    ] = "table",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="With --format kustomize: the overlay's folder.", metavar="DIR"),
    ] = None,
    base: Annotated[
        Path, typer.Option(help="With --format kustomize: the folder that the overlay is laid over.", metavar="DIR")
    ] = BASE,
    as_json: AsJson = False,
) -> None:
    """Size a deployment: partitions, brokers, database nodes and GPUs for a number of environments, with formulas.

    With --format kustomize: write the size as an overlay, for `kubectl apply -k DIR`.
    """
    from dart_streams.config import Config, load
    from dart_streams.config import tasks as task_sets
    from dart_streams.console.sizing import capacity as planning

    if (form == "kustomize") != (output is not None):
        raise UserError("--format kustomize and --output DIR go together: the overlay is a folder of files")
    if output is not None:
        config = config or DEPLOYMENT
    times = load(workload)
    if times.workload is None:
        raise UserError(f"{workload} has no [workload]; deploy/config/workload/desktop.toml has one")
    deployment = load(config) if config else Config()
    counted = gpu_constants(model, deployment, gpu_memory) if model else []
    if config and deployment.env.backend == "miniwob":
        counted.append(browser_constant())
    tasks = task_sets.load(workload.parent / times.tasks.file)
    sizing = planning.plan(envs, times.workload, tasks, staleness, dict(map(change, changes or [])), counted)
    if output is not None and config is not None:
        write_overlay(output, base, config, sizing, staleness)
    if as_json:
        show_json(sizing)
    elif form == "table":
        print_sizing(sizing)


def print_sizing(sizing: Sizing) -> None:
    """Print a plan's figures with their formulas, then its constants."""
    from rich.table import Table

    from dart_streams.console.sizing.capacity import format_number

    table = Table(title=f"{sizing.envs:,} environments, all of them busy", title_justify="left")
    for name in ("what", "needed", "formula"):
        table.add_column(name, overflow="fold", justify="right" if name == "needed" else "left")
    for figure in sizing.figures:
        table.add_row(
            figure.what,
            cell_text(f"{format_number(figure.needed)} {figure.unit}".strip()),
            cell_text(figure.formula),
        )
    PlainConsole().print(table)
    show(sizing.constants, as_json=False, title="constants")


def write_overlay(folder: Path, base: Path, config: Path, sizing: Sizing, staleness: int) -> None:
    """Write the overlay of a plan over the folder ``base``; name its files, and what it does not make.

    Raises UserError if ``base`` is no kustomization, ConfigError if the numbers do not go together.
    """
    import os

    import tomli_w

    from dart_streams.config.tables import read_tables
    from dart_streams.console.sizing import overlay

    if not (base / "kustomization.yaml").is_file():
        raise UserError(f"{base} has no kustomization.yaml: name the manifests by --base, such as {BASE}")
    tables = overlay.size_tables(
        read_tables(config, "no configuration file {}: name one by --config"), sizing, staleness
    )
    folder.mkdir(parents=True, exist_ok=True)
    texts = overlay.overlay_files(sizing, tables, os.path.relpath(base.resolve(), folder.resolve()))
    texts["dart.toml"] = tomli_w.dumps(tables)
    for name, text in texts.items():
        (folder / name).write_text(text)
    for line in overlay.summarize(sizing):
        note(line)
    note(f"written: {', '.join(texts)} in {folder}. Apply them by `kubectl apply -k {folder}`")


def browser_constant() -> Constant:
    """Return the cost of a step for env workers that have their browsers in their pods."""
    from dart_streams.console.sizing.capacity import CONSTANTS, Constant

    (remote,) = (constant for constant in CONSTANTS if constant.name == "env_ms")
    source = f"{remote.value:g} and {BROWSER_MS:g} of Chromium, bench browser"
    return Constant("env_ms", remote.value + BROWSER_MS, remote.unit, "measured", source)


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
