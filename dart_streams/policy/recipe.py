"""The directory of a deployment's model; a digest of its inputs names that of the tiny policy. Without torch."""

import hashlib
from pathlib import Path

import msgspec

from dart_streams.config import Config, tasks
from dart_streams.errors import ConfigError, UserError

ROOT = Path(__file__).parents[2]
SOURCES = tuple(
    ROOT / name
    for name in (
        "dart_streams/actions",
        "dart_streams/actions/dialects",
        "dart_streams/policy",
        "dart_streams/episodes/prompts.py",
        "trainer/data/collate.py",
        "trainer/data/samples.py",
        "trainer/learning/model.py",
        "trainer/learning/vision.py",
        "trainer/warmup",
    )
)
"""Code that determines the policy: model, prompts and warm-up. By path, since it is not imported here."""
DIGITS = 16


def model_folder(config: Config) -> Path:
    """Return the directory of the initial model; raise :class:`UserError` with the remedy if it is missing."""
    if config.policy.path:
        return named_policy(config)
    path = tiny_policy_folder(config, tasks.load(Path(config.tasks.file)))
    if not path.is_dir():
        raise UserError(
            f"no model directory {path}: build the tiny policy with `dart-streams policy build`, or set policy.path "
            "to a Hugging Face directory of an image-text-to-text model"
        )
    return path


def named_policy(config: Config) -> Path:
    """Return the directory that ``policy.path`` names; raise :class:`ConfigError` if it holds no model."""
    path = Path(config.policy.path).absolute()
    if not (path / "config.json").is_file():
        raise ConfigError(
            f"policy.path: {path} is no Hugging Face model directory (it has no config.json): correct the path, "
            "or leave policy.path empty for the tiny policy"
        )
    return path


def tiny_policy_folder(config: Config, task_set: tasks.TaskSet) -> Path:
    """Return the directory of this deployment's tiny policy, built or not."""
    return Path(config.run.state_dir) / "policies" / tiny_policy_digest(config, task_set)


def tiny_policy_digest(config: Config, task_set: tasks.TaskSet) -> str:
    """Return the name of a build: a digest (hex) of settings, demonstrated tasks and code."""
    policy = config.policy
    windows = (policy.min_images, policy.max_images, policy.min_texts, policy.max_texts)
    shown = (*windows, policy.min_pixels, policy.max_pixels, policy.dialect)
    state = hashlib.sha256(msgspec.json.encode([shown, config.warmup, task_set.demonstration, config.env.backend]))
    for source in SOURCES:
        for file in sorted(source.glob("*.py")) if source.is_dir() else [source]:
            state.update(file.read_bytes())
    for page in sorted({task.page for task in task_set.demonstration}):
        if own := config.env.miniwob.own_page(page):
            state.update(own.read_bytes())
    return state.hexdigest()[:DIGITS]
