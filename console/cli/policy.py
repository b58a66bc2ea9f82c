"""``dart-streams policy``: build the tiny policy of a deployment, check a model, or export a trained version."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from console.cli import policy_hub
from console.cli.options import AsJson, ConfigFile, RunConfig, RunId, State, read_config, run_config
from console.cli.output import note, notes
from dart_streams.errors import ConfigError, UserError

if TYPE_CHECKING:
    from console.sizing.model_fit import Fit
    from dart_streams.config import Config
    from dart_streams.config.tasks import TaskSet

app = typer.Typer(no_args_is_help=True)
app.command("fetch")(policy_hub.fetch)
app.command("push")(policy_hub.push)

LINE_INTERVAL_S = 3.0
"""Interval of progress lines without a terminal."""


@app.command()
def path(config: ConfigFile = None) -> None:
    """Print where the tiny policy of a deployment lies, whether it is built or not."""
    from dart_streams.policy import recipe

    settings = read_config(config)
    typer.echo(recipe.tiny_policy_folder(settings, task_set(settings)))


@app.command()
def build(
    config: ConfigFile = None,
    imported: Annotated[
        Path | None,
        typer.Option(
            help="Build it here, from the demonstrations that `data import` has put into the topics.", metavar="DIR"
        ),
    ] = None,
) -> None:
    """Build the tiny policy unless it is there already, and print its directory.

    Needs an env worker and a recorder with the same configuration: they play the demonstrations that this orders. With
    --imported it orders none, and needs neither.
    """
    from dart_streams.config import tasks
    from dart_streams.policy import recipe

    settings = read_config(config)
    if imported is not None:
        if imported.exists():
            raise UserError(f"{imported} exists: remove it, or name another directory")
        make(settings, tasks.load(Path(settings.tasks.file)), imported, imported=True)
        typer.echo(imported)
        return
    known = task_set(settings)
    folder = recipe.tiny_policy_folder(settings, known)
    if folder.is_dir():
        note(f"the policy is built already: {folder}")
    else:
        make(settings, known, folder)
    typer.echo(folder)


@app.command()
def check(
    model: Annotated[
        Path, typer.Argument(help="A Hugging Face directory, or the id of a fetched model.", metavar="DIR")
    ],
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Say whether a model can be the policy of a configuration here; if not, why, and exit with code 1.

    Loads none of its weights. Its context must have room for the longest prompt of the configuration.
    """
    from dart_streams.policy import recipe

    found = fit_of(recipe.local_folder(model), read_config(config))
    if as_json:
        typer.echo(msgspec.json.encode(found).decode())
    elif not found.reason:
        typer.echo(
            f"{found.architecture}: transformers trains it, and vLLM serves it. The longest prompt has "
            f"{found.prompt:,} tokens, the context {found.context:,}"
        )
    if found.reason:
        if not as_json:
            raise UserError(f"{model} cannot be the policy: {found.reason}")
        raise typer.Exit(1)


def fit_of(model_dir: Path, settings: Config) -> Fit:
    """Return the architecture of a model that transformers and vLLM both take, or the reason why one does not."""
    from console.sizing.model_fit import Fit
    from dart_streams.episodes.context import most_steps
    from workers.rollout import vllm_settings

    os.environ.update(vllm_settings.engine_environment(os.environ))
    from dart_streams.policy import fit
    from dart_streams.policy.rendering import count_longest, renderer_of
    from dart_streams.policy.tensor_parallel import sharding_refusal

    try:
        architecture = fit.check(model_dir, settings.policy.min_pixels, settings.policy.max_pixels)
        ranks = settings.rollout.vllm.tensor_parallel
        if reason := sharding_refusal(fit.load_configuration(model_dir).to_dict(), ranks):
            return Fit(reason=reason)
        longest = count_longest(renderer_of(model_dir, settings.policy), settings, most_steps(settings))
        from workers.rollout import vllm_fit  # Its import takes longest, and what does not fit without it needs none.

        context = vllm_fit.check(model_dir)
    except UserError as error:
        return Fit(reason=str(error))
    return Fit(architecture=architecture, context=context, prompt=longest.prompt, reason=longest.refusal(context))


@app.command()
def export(
    target: Annotated[Path, typer.Argument(help="The directory to make.", metavar="DIR")],
    run: RunId = "",
    state: State = Path(".dart"),
    config: RunConfig = None,
    version: Annotated[int | None, typer.Option(help="The version. \\[default: the newest]")] = None,
    adapter: Annotated[bool, typer.Option("--adapter", help="Only its LoRA adapter, as peft reads it.")] = False,
) -> None:
    """Export a trained version as a Hugging Face directory, for transformers, vLLM, or `dart-streams run --init`.

    With LoRA the adapter is merged into the weights, unless it is asked for alone.

    The broker must be up.
    """
    from dart_streams.policy import exporting, recipe
    from dart_streams.policy.hub_models import hub_model

    settings = run_config(run, state, config)
    own = bool(settings.policy.path)
    model_dir = recipe.named_policy(settings) if own else recipe.tiny_policy_folder(settings, task_set(settings))
    found = exporting.find(settings.bus, settings.policy.model_id, version)
    if adapter:
        exporting.export_adapter(model_dir, found, target, base=hub_model(settings.policy.path))
    else:
        exporting.export(model_dir, found, target)
    note(f"version {found.version} of {found.model_id!r}, after {found.train_step} training steps")
    typer.echo(target)


def task_set(config: Config) -> TaskSet:
    """Return the deployment's tasks; raise :class:`ConfigError` if none is for demonstrations."""
    from dart_streams.config import tasks

    known = tasks.load(Path(config.tasks.file))
    if not known.demonstration:
        raise ConfigError(f"{config.tasks.file}: no page has demonstration_seeds, so there is nothing to imitate")
    return known


def make(config: Config, known: TaskSet, folder: Path, *, imported: bool = False) -> None:
    """Build the policy with a progress bar for its two halves."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from trainer.warmup.build import build

    text, loss_text = TextColumn("{task.description:>16}"), TextColumn("{task.fields[loss]}")
    with Progress(text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), loss_text, console=notes) as progress:
        count = None if imported else min(config.warmup.demonstrations, len(known.demonstration))
        shown = progress.add_task("demonstrations", total=count, loss="")
        trained = progress.add_task("training steps", total=config.warmup.steps, loss="")
        said_s = time.monotonic()

        def report(finished: int, step: int, loss: float) -> None:
            nonlocal said_s
            progress.update(shown, completed=finished)
            progress.update(trained, completed=step, loss=f"loss {loss:.2f}" if step else "")
            if not notes.is_terminal and time.monotonic() - said_s >= LINE_INTERVAL_S:
                said_s = time.monotonic()
                of_steps = f"{step}/{config.warmup.steps} training steps, loss {loss:.2f}"
                note(f"{finished}/{count or finished} demonstrations, {of_steps}")

        build(config, known, folder, report, imported=imported)
