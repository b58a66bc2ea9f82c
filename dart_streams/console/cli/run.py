"""``dart-streams run``, ``eval`` and ``report``: a supervised run, an evaluation, and the report of a run."""

import asyncio
import contextlib
import functools
import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from dart_streams.bus.clients import Publisher
from dart_streams.config import Config
from dart_streams.config import tasks as task_sets
from dart_streams.connection import auth
from dart_streams.console.cli.options import (
    DEFAULT_CONFIG,
    AsJson,
    RunConfig,
    RunId,
    State,
    find_run,
    read_config,
    run_config,
)
from dart_streams.console.cli.output import note, show
from dart_streams.console.launch import process_registry
from dart_streams.console.launch import processes as run_processes
from dart_streams.console.launch.evaluate import evaluate as evaluate_policy
from dart_streams.console.launch.services import jars
from dart_streams.console.launch.session import Session, run_session
from dart_streams.console.launch.training_run import TrainingRun, required_steps
from dart_streams.console.runs import evaluation, run_folder
from dart_streams.console.runs.resumption import changed_keys
from dart_streams.console.runs.run_folder import RunFolder
from dart_streams.console.runs.run_follower import follow_run
from dart_streams.console.sizing import gpu_memory, model_files, model_fit
from dart_streams.console.views.console import PlainConsole
from dart_streams.episodes import context
from dart_streams.errors import ConfigError, UserError
from dart_streams.telemetry import environment, setup


def run(
    config: Annotated[
        Path | None,
        typer.Argument(
            help=f"Configuration file. \\[default: {DEFAULT_CONFIG}; with --resume the run's own]", show_default=False
        ),
    ] = None,
    resume: Annotated[str, typer.Option("--resume", help="Continue this run.", metavar="RUN")] = "",
    state: Annotated[
        Path | None,
        typer.Option("--state", help="With --resume alone: the state folder. \\[default: .dart]", show_default=False),
    ] = None,
    name: Annotated[str, typer.Option("--id", help="The new run's id. \\[default: the time]", show_default=False)] = "",
    init: Annotated[
        Path | None,
        typer.Option(help="Start from this model. \\[default: policy.path]", metavar="DIR"),
    ] = None,
    attached: Annotated[
        bool, typer.Option("--attached", help="Start no processes: those of this deployment run already.")
    ] = False,
    before: Annotated[
        bool, typer.Option("--before", help="With --attached: evaluate before training, and end.")
    ] = False,
) -> None:
    """Start every process of a deployment under a supervisor, train, and write a report.

    A resumed run goes on with its own configuration and tasks. With another one, the keys that differ are shown. Those
    that its records, rows and checkpoints rest on are refused: store.keyspace, env.backend, the environment's rewards
    and screen size, policy, warmup, curation, trainer.lora and trainer.weights_uri.
    """
    if resume and (name or init):
        raise UserError("--resume names the run and its model: leave out --id and --init")
    if (before and not attached) or (attached and (resume or name or init)):
        raise UserError("--before goes with --attached; --resume, --id and --init do not: run.id names an attached run")
    if state and (config or not resume):
        raise UserError("--state goes with --resume alone: else run.state_dir of the configuration says it")
    if reason := environment.disabled_reason(os.environ):
        note(f"nothing is measured: {reason}")
    if attached:
        run_attached(read_config(config or DEFAULT_CONFIG), before_only=before)
        return
    wanted = resumed_config(resume, state, config) if resume else read_config(config or DEFAULT_CONFIG)
    wanted = with_model(init, wanted)
    refuse_unfit_model(wanted)
    refuse_missing_key(wanted)
    runs = Path(wanted.run.state_dir).absolute() / "runs"
    ended, services = process_registry.end_leftovers(runs)
    if ended:
        note(f"ended processes that a killed run had left: {', '.join(ended)}")
    run_id = wanted.run.id if resume else name or run_folder.new_id()
    with contextlib.ExitStack() as life:
        if resume:
            life.enter_context(run_folder.lock_folder(runs / run_id))
        made = run_folder.create(wanted, Path(wanted.tasks.file), run_id, resume=bool(resume))
        if not resume:
            life.enter_context(run_folder.lock_folder(made.path))
        note(f"run {made.id} in {made.path}")
        run_session(made, lambda _: own_session(made, owns_services=services))


def resumed_config(run: str, state: Path | None, config: Path | None) -> Config:
    """Return the configuration with which a run goes on, and its id in it: the run's own, or ``config``.

    What ``config`` changes is shown. Raises UserError if there is no such run.
    """
    given = None if config is None else read_config(config)
    found = run_folder.find(given.run.state_dir if given else str(state or run_folder.DEFAULT_STATE), run)
    if given is not None:
        show_changes(found, given)
    return found.named(given or found.config())


def show_changes(found: RunFolder, wanted: Config) -> None:
    """Show what another configuration changes in a run, and that it changes nothing in its tasks."""
    for key in changed_keys(found.config(), wanted):
        note(f"changes {key}")
    with contextlib.suppress(ConfigError):
        if task_sets.load(Path(wanted.tasks.file)).pages != found.tasks().pages:
            note(f"the run keeps its own tasks: those of {wanted.tasks.file} are others")


def run_attached(config: Config, *, before_only: bool) -> None:
    """Measure a run whose processes others keep alive, and write its report."""
    required_steps(config)
    earlier = RunFolder(config.run.folder)
    if earlier.config_file.exists():
        for key in changed_keys(earlier.config(), config):
            note(f"changes {key}")
    made = run_folder.attach(config, Path(config.tasks.file))
    note(f"run {made.id} in {made.path}")
    run_session(made, lambda _: attached_session(made, before_only=before_only))


def attached_session(made: RunFolder, *, before_only: bool) -> Session:
    """Return the session of a run without processes of its own."""
    return Session(made, None, no_report if before_only else write_report, PlainConsole(), before_only=before_only)


def own_session(made: RunFolder, *, owns_services: bool) -> Session:
    """Return the session of a run with its own processes."""
    config, programs = made.config(), run_processes.find_programs()
    return Session(
        made,
        run_processes.processes_of(config, made.config_file, programs),
        write_report,
        PlainConsole(),
        find_policy=functools.partial(run_processes.find_policy, made, found=programs)
        if run_processes.needs_model(config)
        else None,
        owns_services=owns_services,
    )


async def write_report(ended: TrainingRun) -> None:
    """Write the report of a run that has just ended, and print its headline."""
    from dart_streams.console.views import report as reports

    headline = await reports.finish(ended.folder, ended.follower, ended.lags, jars.plots_folder(), ended.notify)
    ended.notify(headline)


async def no_report(_: TrainingRun) -> None:
    """End an evaluation before training: its report is that of the whole run."""


def with_model(init: Path | None, config: Config) -> Config:
    """Return a configuration whose policy is the model in ``init``, if given; raise for a path that is no model."""
    if init is not None:
        policy = msgspec.structs.replace(config.policy, path=str(init.absolute()))
        config = msgspec.structs.replace(config, policy=policy)
    if config.policy.path:
        run_processes.named_policy(config)
    return config


def refuse_unfit_model(config: Config) -> None:
    """Raise ConfigError, with the reason, if the configuration names a model that cannot be the policy."""
    if not config.policy.path or not run_processes.needs_model(config):
        return
    folder = run_processes.named_policy(config)
    if reason := context.context_refusal(folder, config, context.most_steps(config)):
        raise ConfigError(f"policy.path: {folder}: {reason}")
    if config.rollout.engine == "vllm":
        model_fit.refuse_unfit(folder, run_processes.find_programs().model, config)
        if config.trainer.lora.rank:
            linear = model_files.linear_layers(model_files.read_headers(folder))
            gpu_memory.adapted_layers(linear, config.trainer.lora)


def refuse_missing_key(config: Config) -> None:
    """Raise ConfigError if the endpoint that is to serve the policy has a key that this process cannot read."""
    settings = config.rollout.openai
    if config.rollout.engine == "openai" and settings.api_key:
        auth.read_secret(settings.api_key, "rollout.openai.api_key")


def evaluate(run: RunId = "", state: State = Path(".dart"), config: RunConfig = None, as_json: AsJson = False) -> None:
    """Evaluate the policy that is served now on the held-out tasks; the deployment's processes must be up."""
    wanted = run_config(run, state, config)
    setup.start_logs("eval")
    result = asyncio.run(evaluate_served(wanted))
    rows = [
        evaluation.EvaluationRow.of(page, rate) for page, rate in {**result.per_page, "all": result.overall}.items()
    ]
    show(rows, as_json=as_json, title=f"version {result.version}")


async def evaluate_served(config: Config) -> evaluation.EvaluationResult:
    """Evaluate the served version of a running deployment."""
    tasks = task_sets.tasks_of(config)
    async with (
        Publisher(config.bus, "eval") as publisher,
        follow_run(config.bus, publisher, config.telemetry.stall_s) as watch,
    ):
        progress = await watch.until(
            lambda progress: progress.served_by(watch.heartbeats.alive(config.rollout.liveness_s)) is not None,
            "a rollout worker to serve a weight version",
            config.bus.wait_s,
            "Start the deployment's workers first: this command only orders episodes",
        )
        served = progress.served_by(watch.heartbeats.alive(config.rollout.liveness_s))
        return await evaluate_policy(config, tasks, watch, publisher, served or 0)


def report(
    name: Annotated[
        str, typer.Argument(help="The run's id. \\[default: the latest]", metavar="RUN", show_default=False)
    ] = "",
    run: RunId = "",
    state: State = Path(".dart"),
) -> None:
    """Write the report of a run again, from its topics, its rows and its metrics; the services must be up."""
    from dart_streams.console.views import report as reports

    found = find_run(name or run, state)
    setup.start_logs("report")
    note(asyncio.run(reports.rewrite(found, jars.plots_folder())))
