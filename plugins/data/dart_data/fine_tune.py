"""``dart-streams train --sft``: prepare the data, fine-tune the model, and print the measures before and after."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from console.cli.options import read_config
from console.cli.output import log_to_stderr, note, show, show_json
from dart_streams.errors import UserError

if TYPE_CHECKING:
    from dart_data.sft_set import AnswerLimits, SftData
    from dart_streams.config import Config
    from dart_streams.config.tasks import TaskSet


def fine_tune(config: Path | None, data: Path, output: Path, strict: bool, as_json: bool) -> None:
    """Fine-tune the model of a configuration on ``data``; ``output`` is the directory to make."""
    from dart_streams.episodes import context
    from dart_streams.policy import cpu_features, recipe

    settings, output = read_config(config), output.absolute()
    if output.exists():
        raise UserError(f"{output} exists: remove it, or name another directory")
    if settings.trainer.nodes > 1:
        raise UserError(
            f"--sft trains on one node, and trainer.nodes = {settings.trainer.nodes}: leave it and trainer.rendezvous "
            "out of the configuration"
        )
    log_to_stderr()
    model = recipe.model_folder(settings)
    cpu_features.limit_isa(settings.trainer.dtype, Path(settings.run.state_dir))
    if refusal := context.context_refusal(model, settings, context.most_steps(settings)):
        raise UserError(refusal)
    prepared = prepare(settings, model, data, output, strict)
    note(f"{prepared.trajectories} trajectories with {prepared.answers} answers, {len(prepared.unusable)} left out")
    train(settings, model, data, output, prepared, as_json)


def prepare(settings: Config, model: Path, data: Path, output: Path, strict: bool) -> SftData:
    """Write the usable episodes to the work folder; raise :class:`UserError` if too many are unusable."""
    from dart_data import sft_set
    from dart_data.sft.job import CHECKPOINTS, lock_folder, remove_work, work_folder

    folder, tasks, limits = work_folder(output), task_set(settings), limits_of(settings, model)

    def report(left: sft_set.Unusable) -> None:
        note(f"left out: {left.place}: {left.reason}")

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with lock_folder(folder):
            try:
                return sft_set.prepare(settings, tasks, data, folder, limits, report, strict=strict)
            except UserError:
                if not (folder / CHECKPOINTS).exists():
                    remove_work(folder)
                raise
    except OSError as error:
        raise UserError(f"the data can't be written to {folder}: {error}") from None


def limits_of(settings: Config, model: Path) -> AnswerLimits:
    """Return the limits of a model's answers and screens."""
    from dart_data.sft_set import AnswerLimits
    from dart_streams.policy.rendering import renderer_of

    renderer = renderer_of(model, settings.policy)
    return AnswerLimits(lambda text: len(renderer.answer_tokens(text)), renderer.expansion)


def task_set(settings: Config) -> TaskSet:
    """Return the tasks, whose held-out ones are not trained on; an empty set without a task file."""
    from dart_streams.config import tasks

    file = Path(settings.tasks.file)
    if not file.exists():
        note(f"there is no task file {file}: demonstrations of held-out tasks can't be found")
        return tasks.TaskSet([])
    return tasks.load(file)


def train(settings: Config, model: Path, data: Path, output: Path, prepared: SftData, as_json: bool) -> None:
    """Train on the prepared episodes and print the result; remove the work folder at the end."""
    from dart_data.sft import main
    from dart_data.sft.episodes import EpisodeFolder
    from dart_data.sft.job import DataFacts, LeftOut, SftJob, remove_work, work_folder, write_job

    facts = DataFacts(
        path=str(data),
        sha256=EpisodeFolder(work_folder(output)).sha256,
        trajectories=prepared.trajectories,
        answers=prepared.answers,
        unusable=[LeftOut(left.place, left.reason) for left in prepared.unusable],
    )
    job = SftJob(config=settings, model=str(model.absolute()), output=str(output), data=facts)
    result = main.run(write_job(job))
    remove_work(work_folder(output))
    if as_json:
        show_json(result)
    else:
        rows = [measures for measures in (result.before, result.after) if measures is not None]
        show(rows, as_json=False, title="held out, before and after", empty="nothing was held out")
    note(f"{result.steps} steps in {result.seconds:.0f} s: {output}")
