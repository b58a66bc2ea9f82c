"""The ``dart-streams`` command.

Only the module of the command that was asked for is imported: the command starts fast, and it works in both virtual
environments, although each lacks the other's libraries. To add a command, add a line to ``COMMANDS``; a package adds it
by an entry point of the group ``dart_streams.commands``. Those named ``worker.KIND`` are plug-ins' kinds of ``worker``.

This module imports next to nothing, so that Ctrl-C finds :func:`main` from the first milliseconds on.
"""

import gc
import importlib
import locale
import os
import shlex
import signal
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from dart_streams.errors import UserError

if TYPE_CHECKING:
    import typer


class Command(NamedTuple):
    """A command: its place in this package (``module:attribute``: a function or a ``typer.Typer``), and its help."""

    name: str
    place: str
    help: str


COMMANDS = (
    Command("up", "up:start_services", "Start the local Kafka and Cassandra, if they do not run yet."),
    Command("down", "up:stop_services", "Stop the local Kafka and Cassandra."),
    Command("doctor", "doctor:check_machine", "Check this machine, with advice for what is missing."),
    Command("run", "run:run", "Start every process of a deployment, train, and write a report."),
    Command("launch", "launch:write_launch", "Write scripts that start a deployment on nodes or with Slurm."),
    Command("eval", "run:evaluate", "Evaluate a policy on the held-out tasks."),
    Command("runs", "runs:app", "List the runs of a folder; print their logs, end one, remove one."),
    Command("report", "run:report", "Write the report of a run again."),
    Command("config", "config:app", "Show and check configuration files."),
    Command("env", "env:app", "Try the tasks of a configuration in their environment."),
    Command("topics", "topics:app", "Plan, apply and describe the topics."),
    Command(
        "worker",
        "process:run_worker",
        "Run one worker process: env, rollout, recorder, curator, monitor, tracker or desktops.",
    ),
    Command("train", "process:train", "Run the training process."),
    Command("tasks", "tasks:show_tasks", "Show what the data manager decides for each task, and why."),
    Command("propose", "propose:propose_tasks", "Propose tasks to a run, which checks each before it trains on it."),
    Command("feedback", "feedback:app", "Judge a run's trajectories, correct their steps, note what was seen."),
    Command("demonstrate", "demonstrate:demonstrate", "Play a task of a running run by hand, in a page."),
    Command("ui", "ui:serve_page", "Serve the live web page of a run, or of a bundle; it only reads."),
    Command("trace", "trace:trace", "Follow an id to what it was made from and what it went into."),
    Command("mcp", "", "Serve a run, or a bundle, to coding agents as an MCP server; it only reads."),
    Command("capture", "bundle:capture", "Write a run's records into one file, or verify one."),
    Command("replay", "bundle:replay", "Repeat a bundle's decisions and compare, or with other settings."),
    Command("restore", "restore:restore", "Restore a captured run into a broker and a store."),
    Command("data", "", "Export a run's episodes as a data set; import one as demonstrations."),
    Command("dlq", "topics:dead_letters", "Show dead letters, and publish them again."),
    Command("store", "store:app", "Rebuild a run's rows from its log, and compare the two."),
    Command("policy", "policy:app", "Build the tiny policy; check a model; export a trained one."),
    Command("osworld", "", "Check OSWorld's tasks on our desktops, and their mirror."),
    Command("bench", "bench:app", "Run this project's benchmarks on this machine."),
)
MODEL_LIBRARIES = frozenset(
    {"torch", "torchvision", "transformers", "vllm", "safetensors", "tokenizers", "huggingface_hub", "httpx2"}
)
STREAM_LIBRARIES = frozenset({"faust", "aiohttp", "miniwob", "matplotlib", "rocksdict"})
DATA_LIBRARIES = frozenset({"pyarrow", "datasets", "tensorboard", "wandb", "mlflow", "trackio"})
INTERRUPTED = 128 + signal.SIGINT
"""The exit code of a program that Ctrl-C has ended, as shells have it."""


def build_app(wanted: Collection[str]) -> "typer.Typer":
    """Return the application; commands that are not ``wanted`` are not imported and have their line of help only."""
    import typer

    app = typer.Typer(
        help="DART as an event-driven system: environments, rollouts, curation and training over Kafka topics.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def options(
        version: Annotated[
            bool, typer.Option("--version", help="Print the version and exit.", callback=print_version, is_eager=True)
        ] = False,
    ) -> None:
        """See the application's help."""

    others = [Command(name, "", "") for name in wanted if name not in {command.name for command in COMMANDS}]
    for command in (*COMMANDS, *(other for other in others if find_verbs(other.name))):
        if command.name not in wanted:
            app.command(command.name, help=command.help)(lambda: None)
        elif isinstance(target := load_command(command), typer.Typer):
            app.add_typer(target, name=command.name, help=command.help)
        else:
            app.command(command.name)(target)  # its docstring is its help
    return app


def print_version(wanted: bool) -> None:
    """Print the version, and exit."""
    if wanted:
        import typer

        from dart_streams.version import VERSION

        typer.echo(f"dart-streams {VERSION}")
        raise typer.Exit


def load_command(command: Command) -> Any:
    """Import a command; one without a place is a plug-in's."""
    module, _, attribute = command.place.partition(":")
    if not module:
        return load_verb(command.name)
    return getattr(importlib.import_module(f"console.cli.{module}"), attribute)


def find_verbs(name: str) -> Sequence[Any]:
    """Return the entry points of verb ``name``; what finds them is imported only for verbs of plug-ins."""
    return list(importlib.import_module("importlib.metadata").entry_points(group="dart_streams.commands", name=name))


def load_verb(name: str) -> Any:
    """Import a verb of a plug-in; raise UserError unless exactly one package has it."""
    if len(found := find_verbs(name)) == 1:
        return found[0].load()
    from dart_streams.config.entry_points import missing_advice

    why = f"{len(found)} installed packages have this verb" if found else missing_advice(name)
    raise UserError(f"{name.replace('.', ' ')}: {why}")


def main() -> None:
    """Run the command line: a :class:`UserError` becomes its text and an exit code, anything else a traceback.

    What an error held is released before the process ends: a client of Kafka whose thread has ended with the process
    would be closed for ever.
    """
    use_utf8()
    code = execute(sys.argv[1:])
    gc.collect()
    sys.exit(code)


def use_utf8() -> None:
    """Begin again in Python's UTF-8 mode, also for child processes, where the locale has another encoding."""
    if not sys.flags.utf8_mode and locale.getencoding().lower() not in ("utf-8", "utf8"):
        arguments = [sys.executable, "-X", "utf8", *sys.orig_argv[1:]]
        os.execve(sys.executable, arguments, {**os.environ, "PYTHONUTF8": "1"})


def execute(arguments: list[str]) -> "str | int | None":
    """Run a command, print its error, and return the exit code."""
    import logging

    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)  # it warns of torchao, which transformers imports
    try:
        from dart_streams.telemetry import environment

        environment.check_environment(os.environ)  # before a command's imports: the SDK's raise
        build_app(wanted_by(arguments, os.environ))()
    except SystemExit as ended:
        return ended.code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)  # noqa: T201 - what prints in colors may not be imported yet
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the outermost handler
        if (known := explain_error(error, arguments)) is None:
            sys.excepthook(type(error), error, error.__traceback__)
            return 1
        return show_error(known)
    return 0


def explain_error(error: Exception, arguments: Sequence[str]) -> UserError | None:
    """Return an error for the person at the terminal; None for one that nobody expects."""
    if isinstance(error, UserError):
        return error
    if isinstance(error, ModuleNotFoundError):
        return other_environment(arguments, error.name or "")
    if isinstance(error, OSError):
        from dart_streams.disk_room import refusal_of

        return refusal_of(error)
    return None


def wanted_by(arguments: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return the command that a command line names, or that a shell asks completions of; nothing if it names none."""
    if "_DART_STREAMS_COMPLETE" in environ:
        arguments = (environ.get("_TYPER_COMPLETE_ARGS") or environ.get("COMP_WORDS", "")).split()[1:]
    return [argument for argument in arguments if not argument.startswith("-")][:1]


def other_environment(arguments: Sequence[str], module: str) -> UserError | None:
    """Return the error for a module that only the other environment has; None if neither has it."""
    missing = module.partition(".")[0]
    command = shlex.join(arguments)
    for libraries, name in ((MODEL_LIBRARIES, "model"), (STREAM_LIBRARIES, "streams")):
        if missing in libraries:
            return UserError(
                f"this needs {missing}, which the other environment has: .venv/{name}/bin/dart-streams {command}"
            )
    if missing in DATA_LIBRARIES:
        return UserError(
            f"this needs {missing}, which only .venv/data has. `make data` makes it, then run: "
            f".venv/data/bin/dart-streams {command}"
        )
    return None


def show_error(error: UserError) -> int:
    """Print an error meant for the person at the terminal, and return its exit code."""
    from rich.markup import escape

    from console.cli.output import notes

    notes.print(f"[red]error:[/red] {escape(str(error))}", soft_wrap=True)
    return error.exit_code


if __name__ == "__main__":
    main()
