"""``dart-streams run``, ``eval`` and ``report``: a supervised run, an evaluation, and the report of a run."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from console.cli import options
from console.cli.output import note, show
from dart_streams.errors import UserError

if TYPE_CHECKING:
    from console.runs.run_folder import RunFolder

ResumedState = Annotated[
    Path | None, typer.Option("--state", help="With --resume alone: the state folder. \\[default: .dart]")
]
InitialModel = Annotated[
    Path | None, typer.Option(help="Start from this model, a folder or an id. \\[default: policy.path]", metavar="DIR")
]
Minutes = Annotated[
    float | None, typer.Option("--minutes", help="Minutes of training. \\[default: run.minutes]", metavar="N")
]
Attached = Annotated[bool, typer.Option("--attached", help="Start no processes: those of this deployment run already.")]
OnlyBefore = Annotated[bool, typer.Option("--before", help="With --attached: evaluate before training, and end.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Start nothing: print the keys, GPUs and commands of the run.")]


def run(
    config: Annotated[
        Path | None,
        typer.Argument(help=f"Configuration file. \\[default: {options.DEFAULT_CONFIG}; with --resume the run's own]"),
    ] = None,
    resume: Annotated[str, typer.Option("--resume", help="Continue this run.", metavar="RUN")] = "",
    state: ResumedState = None,
    name: Annotated[str, typer.Option("--id", help="The new run's id. \\[default: the time]")] = "",
    init: InitialModel = None,
    recipe: options.Recipes = None,
    settings: options.Settings = None,
    minutes: Minutes = None,
    attached: Attached = False,
    before: OnlyBefore = False,
    dry_run: DryRun = False,
    gpus: options.SimulatedGpus = None,
    gpu_memory: options.SimulatedMemory = 80.0,
    as_json: options.AsJson = False,
) -> None:
    """Start every process of a deployment under a supervisor, train, and write a report.

    Each process gets its GPUs by [hardware]; --dry-run prints them, and needs neither GPUs nor services.

    A resumed run goes on with its own configuration and tasks. With another one, the keys that differ are shown. Those
    that its records and rows rest on are refused: store.keyspace, env.backend, rewards and screen size, recipes, keys
    of curation. So are those of checkpoints: policy, warmup, trainer.lora, freeze_vision, weights_uri and
    checkpoints_uri.
    """
    from console.launch import placed_run, run_start
    from dart_streams.config.files import set_keys
    from dart_streams.telemetry import environment

    refuse_options(resume, state, config, named=bool(name or init), attached=attached, before=before)
    if settings and attached:
        raise UserError("an attached run's processes have read their configuration: set its keys in the file")
    if recipe and resume:
        raise UserError("--resume goes on with the run's own recipes: leave out --recipe")
    if (gpus is not None or as_json) and not dry_run:
        raise UserError("--gpus and --json go with --dry-run; hardware.gpus sets the GPUs of a run")
    if dry_run and attached:
        raise UserError("--dry-run prints what a run starts, and an attached run starts nothing: leave one of them out")
    if reason := environment.disabled_reason(os.environ):
        note(f"nothing is measured: {reason}")
    changes = [*(settings or ()), *([f"run.minutes={minutes}"] if minutes is not None else ())]
    file, fresh = config or options.DEFAULT_CONFIG, bool(config) or not resume
    given = options.read_config(file, recipe or (), changes) if fresh else None
    if attached and given:
        run_start.run_attached(given, note, before_only=before)
        return
    resolved = run_start.resumed_config(resume, state, given, note, changes) if resume or not given else given
    keys = set_keys(file, recipe or (), changes) if given else placed_run.ALL_SET
    if dry_run:
        from console.cli import run_plan
        from dart_streams.config.differences import describe_differences

        note(describe_differences(resolved))
        wanted = run_start.with_init(init, resolved)
        plan = run_start.dry_run(wanted, name, resume=bool(resume), keys=keys, gpus=gpus, gib=gpu_memory)
        run_plan.show_plan(plan, as_json=as_json)
        return
    run_start.start_run(run_start.with_model(init, resolved), name, note, resume=bool(resume), keys=keys)


def refuse_options(
    resume: str, state: Path | None, config: Path | None, *, named: bool, attached: bool, before: bool
) -> None:
    """Raise UserError for options that contradict each other; ``named``: the run or its model is."""
    if resume and named:
        raise UserError("--resume names the run and its model: leave out --id and --init")
    if (before and not attached) or (attached and (resume or named)):
        raise UserError("--before goes with --attached; --resume, --id and --init do not: run.id names an attached run")
    if state and (config or not resume):
        raise UserError("--state goes with --resume alone: else run.state_dir of the configuration says it")


def evaluate(
    run: options.RunId = "",
    state: options.State = Path(".dart"),
    config: options.RunConfig = None,
    as_json: options.AsJson = False,
) -> None:
    """Evaluate the policy that is served now on the held-out tasks; the deployment's processes must be up."""
    from console.launch.run_start import evaluate_served
    from console.runs.evaluation import EvaluationRow
    from dart_streams.telemetry import setup

    deployment = options.run_config(run, state, config)
    setup.start_logs("eval")
    result = asyncio.run(evaluate_served(deployment))
    rows = [
        EvaluationRow(page, round(found.rate, 3), round(found.low, 3), round(found.high, 3), found.trials)
        for page, found in {**result.per_page, "all": result.overall}.items()
    ]
    show(rows, as_json=as_json, title=f"version {result.version}")


def report(
    name: Annotated[str, typer.Argument(help="The run's id. \\[default: the latest]", metavar="RUN")] = "",
    run: options.RunId = "",
    state: options.State = Path(".dart"),
    config: options.RunConfig = None,
    as_json: options.AsJson = False,
) -> None:
    """Write the report of a run again, from its topics, its rows and its metrics; the services must be up.

    With --config it is the report of a deployment so far, in the folder of run.id. --json prints report.json too.
    """
    from console.cli.output import print_line
    from console.launch.services import jars
    from console.views import report as reports
    from dart_streams.telemetry import setup

    folder = options.find_run(name or run, state) if config is None else deployment_folder(config, name or run)
    setup.start_logs("report")
    note(asyncio.run(reports.rewrite(folder, jars.plots_folder())))
    if as_json:
        print_line((folder.path / reports.FIGURES).read_text(encoding="utf-8").rstrip())


def deployment_folder(config: Path, run: str) -> RunFolder:
    """Return the folder of a deployment's run, made if it is missing; raise UserError if ``run`` is named too."""
    from console.runs import run_folder

    if run:
        raise UserError("a run and --config name two deployments: give one of them")
    given = options.read_config(config)
    return run_folder.attach(given, Path(given.tasks.file))
