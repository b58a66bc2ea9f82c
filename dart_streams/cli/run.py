"""``dart-streams run``, ``eval`` and ``report``: the whole circle under a supervisor, and what came of it."""

import asyncio
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from dart_streams import tasks as task_sets
from dart_streams.bus.clients import Publisher
from dart_streams.bus.topology import TopicSpec
from dart_streams.cli.options import DEFAULT_CONFIG, AsJson, ConfigFile, State, read_config
from dart_streams.cli.output import note, show
from dart_streams.config import Config
from dart_streams.errors import UserError
from dart_streams.history import evaluation
from dart_streams.history import run_folder as folder
from dart_streams.history.run_folder import RunFolder
from dart_streams.history.run_follower import following
from dart_streams.launch import bootstrap, processes
from dart_streams.launch import process_registry as leftovers
from dart_streams.launch.evaluate import evaluate as evaluate_policy
from dart_streams.launch.session import Session
from dart_streams.launch.supervisor import Supervisor
from dart_streams.launch.training_run import TrainingRun, required_steps
from dart_streams.telemetry import setup


def run(
    config: Annotated[Path, typer.Argument(help="Configuration file.")] = DEFAULT_CONFIG,
    resume: Annotated[str, typer.Option("--resume", help="Go on with this run.", metavar="RUN")] = "",
    name: Annotated[str, typer.Option("--id", help="The new run's id. [default: the time]", show_default=False)] = "",
    init: Annotated[
        Path | None,
        typer.Option(help="Start from this Qwen2.5-VL class model. [default: policy.path]", metavar="DIR"),
    ] = None,
    attached: Annotated[
        bool, typer.Option("--attached", help="Start no process: those of this deployment run already.")
    ] = False,
    before: Annotated[
        bool, typer.Option("--before", help="With --attached: measure the success before training, and end.")
    ] = False,
) -> None:
    """Run the whole circle under a supervisor, and write a report."""
    if resume and (name or init):
        raise UserError("--resume names the run already, and its model: leave out --id and --init")
    if (before and not attached) or (attached and (resume or name or init)):
        raise UserError("--before goes with --attached; --resume, --id and --init do not: run.id names an attached run")
    if attached:
        attend(read_config(config), before_only=before)
        return
    wanted = started_from(init, read_config(config))
    runs = Path(wanted.run.state_dir).absolute() / "runs"
    ended, services = leftovers.end_leftovers(runs)
    if ended:
        note(f"ended what a killed run had left: {', '.join(ended)}")
    made = folder.create(wanted, Path(wanted.tasks.file), resume or name or folder.new_id(), resume=bool(resume))
    live(made, lambda: session_of(made, owns_services=services))


def attend(config: Config, *, before_only: bool) -> None:
    """Measure a run whose processes are somebody else's, and write its report."""
    required_steps(config)
    made = folder.attach(config, Path(config.tasks.file))
    live(made, lambda: attached_session_of(made, before_only=before_only))


def live(made: RunFolder, make_session: Callable[[], Session]) -> None:
    """Live through a session, with its log in the run's folder."""
    note(f"run {made.id} in {made.path}")
    (made.path / "logs").mkdir(exist_ok=True)
    with (made.path / "logs" / "supervisor.log").open("a", buffering=1) as log:
        setup.start_logs("supervisor", log)
        asyncio.run(make_session().run())


def attached_session_of(made: RunFolder, *, before_only: bool) -> Session:
    """Wire up a run without processes of its own."""
    from dart_streams.views import report as reports

    config = made.config()

    def make_run(supervisor: Supervisor) -> TrainingRun:
        topics = changelogs(config)
        return TrainingRun(made, supervisor, None, extra_topics=topics, notify=session.notify, before_only=before_only)

    async def finish(run: TrainingRun) -> None:
        if not before_only:
            session.notify(await reports.finish(run.folder, run.follower, run.lags))

    session = Session(made, make_run, finish, Console())
    return session


def started_from(init: Path | None, config: Config) -> Config:
    """Return a configuration whose policy is the model in ``init``, if one is given; refuse a path that is no model."""
    if init is not None:
        policy = msgspec.structs.replace(config.policy, path=str(init.absolute()))
        config = msgspec.structs.replace(config, policy=policy)
    if config.policy.path:
        bootstrap.named(config)
    return config


def session_of(made: RunFolder, *, owns_services: bool) -> Session:
    """Wire a run up: its processes, its life and its report."""
    from dart_streams.views import report as reports

    config = made.config()
    programs = processes.programs()
    run_processes = processes.processes_of(config, made.config_file, programs)
    console = Console()

    def make_run(supervisor: Supervisor) -> TrainingRun:
        async def find_policy() -> str:
            return await bootstrap.policy(made, supervisor, programs)

        return TrainingRun(
            made,
            supervisor,
            run_processes,
            extra_topics=changelogs(config),
            notify=session.notify,
            find_policy=find_policy if config.rollout.engine == "vllm" else None,
        )

    async def finish(run: TrainingRun) -> None:
        session.notify(await reports.finish(run.folder, run.follower, run.lags))

    session = Session(made, make_run, finish, console, owns_services=owns_services)
    return session


def changelogs(config: Config) -> tuple[TopicSpec, ...]:
    """Return the topics that back the curator's tables.

    The curator is named, not imported: dart_streams must not depend on the processes.
    """
    return tuple(importlib.import_module("workers.curator.changelogs").changelog_topics(config))


def evaluate(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Evaluate the policy that is served now on the held-out tasks; the deployment's processes must be up."""
    wanted = read_config(config)
    setup.start_logs("eval")
    result = asyncio.run(evaluated(wanted))
    rows = [
        evaluation.EvaluationRow.of(page, rate) for page, rate in {**result.per_page, "all": result.overall}.items()
    ]
    show(rows, as_json=as_json, title=f"version {result.version}")


async def evaluated(config: Config) -> evaluation.EvaluationResult:
    """Evaluate the served version of a running deployment."""
    tasks = task_sets.load(Path(config.tasks.file))
    async with (
        Publisher(config.bus, "eval") as publisher,
        following(config.bus, publisher, config.telemetry.stall_s) as watch,
    ):
        progress = await watch.until(
            lambda progress: progress.served_version is not None,
            "a rollout worker to serve a weight version",
            config.bus.wait_s,
            "Start the deployment's workers first: this command only orders episodes",
        )
        return await evaluate_policy(config, tasks, watch, publisher, progress.served_version or 0)


def report(
    name: Annotated[str, typer.Argument(help="The run's id.", metavar="RUN")] = "latest",
    state: State = Path(".dart"),
) -> None:
    """Write the report of a run again, from its topics, its rows and its metrics; the services must be up."""
    from dart_streams.views import report as reports

    found = folder.find(str(state), name)
    setup.start_logs("report")
    note(asyncio.run(reports.rewrite(found)))
