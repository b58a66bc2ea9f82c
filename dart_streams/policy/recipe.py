"""The directory of a deployment's model; a digest of its inputs names that of the tiny policy. Without torch."""

import hashlib
from pathlib import Path

import msgspec

from dart_streams.config import Config, tasks
from dart_streams.errors import ConfigError, UserError
from dart_streams.policy import hub_models
from dart_streams.policy.hub_models import HubModel, hub_model
from dart_streams.policy.model_folder import missing_files, shorten

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
    """Return the directory of the initial model; raise :class:`UserError` with the remedy if it is missing.

    A model of the hub that is not in the cache is fetched, at the commit that ``policy.path`` must name.
    """
    if model := hub_model(config.policy.path):
        return pinned_folder(model)
    if config.policy.path:
        return named_policy(config)
    path = tiny_policy_folder(config, tasks.load(Path(config.tasks.file)))
    if not path.is_dir():
        raise UserError(
            f"no model directory {path}: build the tiny policy with `dart-streams policy build`, or set policy.path "
            "to a Hugging Face directory of an image-text-to-text model"
        )
    return path


def pinned_folder(model: HubModel) -> Path:
    """Return the snapshot of a model at a commit, fetched if it is missing; raise ConfigError for other revisions."""
    refuse_unpinned(model)
    if (folder := hub_models.find_snapshot(model)) is not None:
        return folder
    from dart_streams.policy import hub  # Only the model environment has the hub's client.

    return hub.fetch_model(model).folder


def refuse_unpinned(model: HubModel) -> None:
    """Raise :class:`ConfigError` for a model whose revision is no commit: processes might load different weights."""
    if not model.is_pinned:
        raise ConfigError(
            f"policy.path: {model} names no commit, so processes might load different weights: set {model.repo}@COMMIT "
            f"(`dart-streams policy fetch {model}` prints it), or start them with `dart-streams run`"
        )


def named_policy(config: Config) -> Path:
    """Return the directory that ``policy.path`` names: a folder, or the snapshot of a model of the hub in its cache.

    Raises :class:`ConfigError` if it holds no model, or the model is not fetched.
    """
    text = config.policy.path
    path = Path(text).absolute()
    if model := hub_model(text):
        return fetched_folder(text, model)
    if missing := missing_files(path):
        raise ConfigError(
            f"policy.path: {path} is no Hugging Face model directory (it has no {shorten(missing)}): name "
            f"{hub_models.FORMS}, or leave policy.path empty for the tiny policy"
        )
    return path


def fetched_folder(text: str, model: HubModel) -> Path:
    """Return a model's snapshot in the cache; raise :class:`ConfigError` if it is not there, or not complete."""
    if (folder := hub_models.find_snapshot(model)) is None:
        raise ConfigError(
            f"policy.path: {Path(text).absolute()} is no folder, and the hub's model {model} is not in "
            f"{hub_models.cache_folder()}: fetch it with `.venv/model/bin/dart-streams policy fetch {model}`, or "
            "correct the path"
        )
    return folder


def local_folder(model_dir: Path) -> Path:
    """Return the directory that an argument names: a folder, or the fetched model of an id."""
    model = hub_model(str(model_dir))
    return model_dir.absolute() if model is None else fetched_folder(str(model_dir), model)


def tiny_policy_folder(config: Config, task_set: tasks.TaskSet) -> Path:
    """Return the directory of this deployment's tiny policy, built or not."""
    return Path(config.run.state_dir) / "policies" / tiny_policy_digest(config, task_set)


def tiny_policy_digest(config: Config, task_set: tasks.TaskSet) -> str:
    """Return the name of a build: a digest (hex) of settings, demonstrated tasks and code."""
    policy = config.policy
    windows = (policy.min_images, policy.max_images, policy.min_texts, policy.max_texts)
    shown = (*windows, policy.min_pixels, policy.max_pixels, policy.dialect)
    state = hashlib.sha256(msgspec.json.encode([shown, config.warmup, task_set.demonstration, config.env.backend]))
    if config.env.screenshots.format:
        state.update(msgspec.json.encode(config.env.screenshots))
    for source in SOURCES:
        for file in sorted(source.glob("*.py")) if source.is_dir() else [source]:
            state.update(file.read_bytes())
    for page in sorted({task.page for task in task_set.demonstration}):
        if own := config.env.miniwob.own_page(page):
            state.update(own.read_bytes())
    return state.hexdigest()[:DIGITS]
