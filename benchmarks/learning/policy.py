"""Warm policy of a deployment, built on recorded demonstrations."""

from pathlib import Path

from benchmarks.learning.circle import RecordedScreens
from benchmarks.learning.episodes import play_demonstration
from benchmarks.learning.screens import Recording
from dart_streams.config import Config
from dart_streams.config.tasks import TaskSet
from dart_streams.episodes.trajectory_summary import summarize
from dart_streams.policy import recipe, tiny
from dart_streams.policy.rendering import Renderer, renderer_of
from trainer.data.prefetch import GroupReader
from trainer.data.samples import ReadyGroup
from trainer.warmup.build import SEED, scratch, warm_up
from trainer.warmup.demonstrations import demonstration_orders, read_success


def warm_policy(config: Config, tasks: TaskSet, recording: Recording, parent: Path) -> Path:
    """Return the policy's directory, built in ``parent`` if missing; deterministic."""
    folder = parent / f"policy-{recipe.tiny_policy_digest(config, tasks)}"
    if not folder.is_dir():
        with scratch(folder) as partial:
            tiny.build(partial, SEED, config.warmup.architecture, config.warmup.width)
            renderer = renderer_of(partial, config.policy)
            groups = demonstration_groups(config, tasks, recording, renderer)
            warm_up(partial, renderer, groups, config.warmup, lambda _step, _loss: None, SEED)
    return folder


def demonstration_groups(config: Config, tasks: TaskSet, recording: Recording, renderer: Renderer) -> list[ReadyGroup]:
    """Return successful demonstrations as groups, in the warm-up's order."""
    screens = RecordedScreens(recording, renderer)
    reader = GroupReader(screens, renderer, config.policy)
    groups = []
    for order in demonstration_orders(tasks.demonstration, config.warmup.demonstrations, SEED):
        observations = play_demonstration(recording, config.policy, order, order.max_steps)
        shown = summarize(observations)
        if shown.outcome == "success":
            screens.observations[shown.trajectory_id] = observations
            groups.append(read_success(reader, shown))
    return groups
