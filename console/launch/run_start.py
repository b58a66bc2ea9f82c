"""The start of a run: its configuration checked, its folder locked, and its session run to the end."""

import contextlib
import functools
from collections.abc import Container, Sequence
from pathlib import Path

import msgspec

from console.launch import evaluate, hub_policy, placed_run, process_registry, processes
from console.launch.services import jars
from console.launch.services.lock import Notify
from console.launch.session import Session, run_session
from console.launch.training_run import TrainingRun, is_evaluated
from console.runs import run_folder
from console.runs.evaluation import EvaluationResult
from console.runs.resumption import changed_keys
from console.runs.run_folder import RunFolder
from console.runs.run_follower import follow_run
from console.sizing import gpu_memory, model_files, model_fit
from console.sizing.placement import Placement
from console.views import report as reports
from console.views.console import PlainConsole
from dart_streams.bus.clients import Publisher
from dart_streams.config import Config
from dart_streams.config import tasks as task_sets
from dart_streams.config.differences import describe_differences
from dart_streams.connection import auth
from dart_streams.curation.recipes import bind_rules
from dart_streams.episodes import context
from dart_streams.errors import ConfigError, UserError
from dart_streams.policy import hub_models, recipe


def start_run(
    config: Config, name: str, notify: Notify, *, resume: bool, keys: Container[str] = placed_run.ALL_SET
) -> None:
    """Run a deployment to its end: a new run called ``name``, or the run of the configuration if ``resume``.

    ``keys`` are those that the file sets: numbers of processes that it does not set follow from the GPUs.
    """
    config, placement = placed_run.place_run(config, keys, placed_run.find_gpus(config))
    refuse_unfit_model(config)
    if config.rollout.engine == "openai" and config.rollout.openai.api_key:
        auth.read_secret(config.rollout.openai.api_key, "rollout.openai.api_key")
    bind_rules(config)  # Contradictory recipes are refused before anything starts.
    run_id = config.run.id if resume else name or run_folder.new_id()
    plan = placed_run.plan_run(config, placement, run_folder.folder_of(config, run_id))
    for line in placed_run.placement_lines(plan.processes, placement):
        notify(line)
    runs = Path(config.run.state_dir).absolute() / "runs"
    ended, services = process_registry.end_leftovers(runs)
    if ended:
        notify(f"ended processes that a killed run had left: {', '.join(ended)}")
    with contextlib.ExitStack() as life:
        if resume:
            life.enter_context(run_folder.lock_folder(runs / run_id))
        before = run_folder.read_latest(runs)
        folder = run_folder.create(config, Path(config.tasks.file), run_id, resume=resume)
        life.enter_context(run_folder.undo_latest(folder, before))
        if not resume:
            life.enter_context(run_folder.lock_folder(folder.path))
        show_run(folder, notify)
        run_session(folder, lambda _: own_session(folder, placement, owns_services=services))


def show_run(folder: RunFolder, notify: Notify) -> None:
    """Say where a run is, and how its settings differ from the papers of its recipes."""
    notify(f"run {folder.id} in {folder.path}")
    notify(describe_differences(folder.config()))


def dry_run(
    config: Config, name: str, *, resume: bool, keys: Container[str], gpus: int | None, gib: float
) -> placed_run.RunPlan:
    """Return what :func:`start_run` would start, on ``gpus`` simulated GPUs of ``gib`` if given. Nothing is written."""
    config, placement = placed_run.place_run(config, keys, placed_run.find_gpus(config, gib, gpus))
    bind_rules(config)
    task_sets.tasks_of(config)
    run_id = config.run.id if resume else name or placed_run.UNNAMED
    return placed_run.plan_run(config, placement, run_folder.folder_of(config, run_id))


def resumed_config(
    run: str, state: Path | None, given: Config | None, notify: Notify, settings: Sequence[str] = ()
) -> Config:
    """Return a resumed run's configuration, its own with ``settings`` or ``given``, and show changes.

    Raises UserError if there is no such run.
    """
    folder = run_folder.find(given.run.state_dir if given else str(state or run_folder.DEFAULT_STATE), run)
    if folder.restored_file.exists():
        raise UserError(
            f"run {folder.id!r} was restored from a bundle, which has neither weights nor committed offsets: it can't "
            "be resumed. Start a new run; `run --init` takes an exported policy"
        )
    if given is None and not settings:
        return folder.named(folder.config())
    if given is None:
        given = folder.config(settings)
    if not given.policy.path:  # The tiny policy that the run made is in its folder.
        policy = msgspec.structs.replace(given.policy, path=folder.config().policy.path)
        given = msgspec.structs.replace(given, policy=policy)
    given = hub_policy.keep_commit(folder.config(), given)
    show_changes(folder, given, notify)
    with contextlib.suppress(ConfigError):
        if task_sets.load(Path(given.tasks.file)).pages != folder.tasks().pages:
            notify(f"the run keeps its own tasks: those of {given.tasks.file} are others")
    return folder.named(given)


def show_changes(folder: RunFolder, config: Config, notify: Notify) -> None:
    """Show the keys that a configuration changes in a run."""
    for key in changed_keys(folder.config(), config):
        notify(f"changes {key}")


def run_attached(config: Config, notify: Notify, *, before_only: bool) -> None:
    """Measure a run whose processes an outside supervisor keeps alive, and write its report."""
    if processes.needs_model(config) and (model := hub_models.hub_model(config.policy.path)):
        recipe.refuse_unpinned(model)
    earlier = RunFolder(config.run.folder)
    if earlier.config_file.exists():
        show_changes(earlier, config, notify)
    before = run_folder.read_latest(earlier.path.parent)
    folder = run_folder.attach(config, Path(config.tasks.file))
    show_run(folder, notify)
    if before_only and is_evaluated(config, folder.journal()):
        return notify("it was measured before training already")
    with run_folder.undo_latest(folder, before):
        run_session(folder, lambda _: attached_session(folder, before_only=before_only))


def attached_session(folder: RunFolder, *, before_only: bool) -> Session:
    """Return the session of a run without processes of its own."""
    return Session(folder, None, write_report, PlainConsole(lasting=True), before_only=before_only)


def own_session(folder: RunFolder, placement: Placement, *, owns_services: tuple[str, ...]) -> Session:
    """Return the session of a run with its own processes."""
    config, programs = folder.config(), processes.find_programs()
    find_policy = functools.partial(processes.find_policy, folder, found=programs, placement=placement)
    return Session(
        folder,
        processes.processes_of(config, folder.config_file, programs, placement),
        write_report,
        PlainConsole(lasting=True),
        find_policy=find_policy if processes.needs_model(config) else None,
        owns_services=owns_services,
    )


async def write_report(run: TrainingRun) -> None:
    """Write the report of a run that has just ended, not of an evaluation before training, and print its headline."""
    if not run.before_only:
        run.notify(await reports.finish(run.folder, run.follower, run.lags, jars.plots_folder(), run.notify))


def with_init(init: Path | None, config: Config) -> Config:
    """Return a configuration whose policy is the model in ``init``, if given, there or not."""
    if init is None:
        return config
    return hub_policy.with_path(config, str(init if hub_models.hub_model(str(init)) else init.absolute()))


def with_model(init: Path | None, config: Config) -> Config:
    """Return a configuration whose policy is the model in ``init``, if given; raise for a path without a model.

    A model of the hub is fetched, and named by its commit.
    """
    return hub_policy.pin_policy(with_init(init, config))


def refuse_unfit_model(config: Config) -> None:
    """Raise ConfigError with the reason if the configured model cannot be the policy."""
    if not config.policy.path or not processes.needs_model(config):
        return
    folder = recipe.named_policy(config)
    if reason := context.context_refusal(folder, config, context.most_steps(config)):
        raise ConfigError(f"policy.path: {folder}: {reason}")
    if config.rollout.engine == "vllm":
        model_fit.refuse_unfit(folder, processes.find_programs().model, config)
        if config.trainer.lora.rank:
            linear = model_files.linear_layers(model_files.read_headers(folder))
            gpu_memory.adapted_layers(linear, config.trainer.lora)


async def evaluate_served(config: Config) -> EvaluationResult:
    """Evaluate the served version of a running deployment."""
    tasks, liveness_s = task_sets.tasks_of(config), config.rollout.liveness_s
    async with (
        Publisher(config.bus, "eval") as publisher,
        follow_run(config.bus, publisher, config.telemetry.stall_s) as watch,
    ):
        progress = await watch.until(
            lambda progress: progress.served_by(watch.heartbeats.alive(liveness_s)) is not None,
            "a rollout worker to serve a weight version",
            config.bus.wait_s,
            "Start the deployment's workers first: this command only orders episodes",
        )
        served = progress.served_by(watch.heartbeats.alive(liveness_s))
        return await evaluate.evaluate(config, tasks, watch, publisher, served or 0)
