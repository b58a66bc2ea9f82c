"""``dart-streams doctor``: check this machine, or whether a model fits on GPUs."""

from pathlib import Path
from typing import Annotated

import typer

from console.cli.options import AsJson, ConfigFile, read_config
from console.cli.output import show


def check_machine(
    config: ConfigFile = None,
    model: Annotated[
        Path | None,
        typer.Option(
            help="Instead: say whether this model directory, or fetched model of an id, fits on GPUs.", metavar="DIR"
        ),
    ] = None,
    gpus: Annotated[int, typer.Option(help="With --model: their number.", min=1)] = 1,
    gpu_memory: Annotated[float, typer.Option(help="With --model: the memory of each, in GiB.", min=1.0)] = 80.0,
    as_json: AsJson = False,
) -> None:
    """Check this machine, or a model before GPUs are there, with advice; exit code 1 if it will not do."""
    resolved = read_config(config)
    if model is not None:
        from console.cli import doctor_model
        from dart_streams.policy import recipe

        doctor_model.report(recipe.local_folder(model), resolved, gpus, gpu_memory, as_json=as_json)
        return
    from importlib.metadata import entry_points

    from console.cli import doctor_checks, gpu_checks

    of_plugins = (entry.load() for entry in sorted(entry_points(group="dart_streams.checks")))
    findings = [check(resolved) for check in (*doctor_checks.CHECKS, gpu_checks.check_model_packages, *of_plugins)]
    show(findings, as_json=as_json)
    if any(finding.status == "fail" for finding in findings):
        raise typer.Exit(1)
