"""Order of tasks by their predicted gain: p (1 - p) of the success that a pretrained model predicts."""

import hashlib
from pathlib import Path

import msgspec

from dart_recipes.outcome_model.model import FORMAT, OutcomeModel, Outcomes, describe_task, success_probability
from dart_streams.config.section import Optional, Share
from dart_streams.curation.hooks import Own, Rules, TaskFinish, Turn
from dart_streams.curation.task_scheduler import PATIENCE
from dart_streams.errors import ConfigError
from topics.rollout_orders import RolloutOrder


class Settings(Optional, frozen=True):
    """The keys of ``[recipes.outcome-model]``."""

    model_file: str = ""
    """The file of a pretrained model, of `dart-streams data pretrain`; empty: all weights begin at 0."""
    sha256: str = ""
    """The sha256 of the model's file; a file with another one is refused."""
    rate: Share = 0.02
    """The step by which each finish changes the weights; 0: the model stays as it is."""
    least: Share = 0.1
    """The minimum probability that a task takes its turn."""


def load_model(settings: Settings) -> OutcomeModel:
    """Read the model's file; raise ConfigError if it is missing, another one or no model."""
    if not settings.model_file:
        return OutcomeModel()
    key = "recipes.outcome-model"
    try:
        content = Path(settings.model_file).read_bytes()
    except OSError as error:
        raise ConfigError(f"{key}.model_file: {settings.model_file} can't be read: {error.strerror}") from None
    found = hashlib.sha256(content).hexdigest()
    if found != settings.sha256:
        advice = f"expected {settings.sha256}" if settings.sha256 else "name it, so that a replay has the same file"
        raise ConfigError(f"{key}.sha256: {settings.model_file} has the sha256 {found}: {advice}")
    try:
        model = msgspec.json.decode(content, type=OutcomeModel)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{key}.model_file: {settings.model_file} is no outcome model: {error}") from None
    if model.format != FORMAT:
        raise ConfigError(
            f"{key}.model_file: {settings.model_file} has the format {model.format}, and {FORMAT} is known"
        )
    return model


def turn_weight(own: Own, turn: Turn) -> float:
    """Return the predicted gain of a task; 1 after ``PATIENCE`` - 1 skipped turns."""
    if turn.task.skips + 1 >= PATIENCE:
        return 1.0
    features = describe_task(turn.task_id, turn.max_steps, own.memory.recent)
    success = success_probability(features, own.load().weights, own.memory.change)
    # The variance of a rollout's success, 1 at its largest.
    return max(own.settings.least, 4.0 * success * (1.0 - success))


def learn_finish(own: Own, event: object) -> None:
    """Note opened groups; change the weights by each rewarded finish, one gradient step of the log loss."""
    memory: Outcomes = own.memory
    if isinstance(event, RolloutOrder):
        memory.open_group(event)
    elif isinstance(event, TaskFinish) and event.rewarded:
        features = memory.finish(event.task_id, event.success, event.ends_group)
        step = own.settings.rate * (event.success - success_probability(features, own.load().weights, memory.change))
        for name, value in features.items() if step else ():
            memory.change[name] = memory.change.get(name, 0.0) + step * value


RULES = Rules(task_weight=turn_weight, remember=learn_finish, memory=Outcomes, load=load_model)
