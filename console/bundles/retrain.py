"""Repeats recorded optimizer steps from a bundle on one machine, without services, to debug a bad step.

A step starts from its recorded weights if their URI still has them, as the first step's must. Other steps continue
from the step before, with an optimizer state that begins at the first repeated step. A bundle may be another person's,
so weights are read only where its user says.
"""

import functools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from console.bundles.bundle_inputs import config_of, tasks_of
from console.bundles.episode_index import EpisodeIndex, IndexedEpisodes
from console.lineage.lineage import READ
from console.runs.bundle import Bundle
from console.runs.run_log import read_log
from console.runs.run_state import RunState
from dart_streams.config import Config
from dart_streams.errors import UserError
from dart_streams.file_storage import StorageUnreachable
from dart_streams.policy import cpu_features, recipe, resident_weights, weight_location
from dart_streams.policy import weights as weight_files
from dart_streams.policy.rendering import renderer_of
from topics.curated import CuratedGroup, Member
from topics.trained import TrainedStep
from trainer.data.prefetch import GroupReader
from trainer.data.scores import restore_scores
from trainer.data.successes import RememberedSuccess, replay_group, sft_group, successes_of
from trainer.hooks import StepStart, TrainingRules, bind_training, is_pretraining
from trainer.learning.imitation import StepImitation
from trainer.learning.learner import Learner, never_stop
from trainer.ranks import join_job

TOLERANCE = 1e-5
"""Largest difference between a repeated loss and the recorded one."""


class ReproducedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A repeated step; ``weights`` names its start, the recorded version or the step before.

    Losses are those of the first update; later ones depend on the optimizer's state, which a bundle lacks. Where a
    step has trained a critic alone, they are the critic's.
    """

    train_step: int
    version: int
    weights: str
    recorded_loss: float
    loss: float
    equal: bool
    refused: int


def run(path: Path, steps: int, first: int | None, weights: str = "") -> list[ReproducedStep]:
    """Repeat ``steps`` recorded steps from step ``first`` on, by default the first whose weights exist.

    ``weights`` is the folder or URL with the run's weights, by default that of its folder in ``.dart``. Raises
    ``BundleError`` if the bundle was captured without ``--blobs``, and :class:`UserError` if there is no such step, its
    groups or first weights are gone, its weights are elsewhere, or there is no model directory.
    """
    bundle = Bundle(path)
    config, state = config_of(bundle), RunState().fold(read_log(bundle, READ))
    here = msgspec.structs.replace(config.run, state_dir=Config().run.state_dir)
    cpu_features.limit_isa(config.trainer.dtype, Path(here.state_dir))
    own = bool(config.policy.path)
    folder = recipe.named_policy(config) if own else recipe.tiny_policy_folder(config, tasks_of(bundle))
    rules = bind_training(config)
    renderer = renderer_of(folder, config.policy)
    result: list[ReproducedStep] = []
    learner: Learner | None = None
    with tempfile.TemporaryDirectory(prefix="replay-") as cache, EpisodeIndex() as index, join_job() as ranks:
        base = weights.rstrip("/") if "://" in weights else str(Path(weights or here.folder / "weights").resolve())
        source = functools.partial(weights_before, state, base=base, cache=Path(cache))
        chosen = steps_from(state, steps, first, rules, source)
        reader = GroupReader(IndexedEpisodes(index, bundle), renderer, config.policy)
        for step in chosen:
            start = source(step)
            if start is not None:
                critic = learner.critic if learner else None
                learner = Learner(folder, renderer, config.trainer, ranks, start, rules)
                learner.critic = critic or learner.critic
            if learner is None:
                raise UserError(
                    f"the weights that train step {step.train_step} started from (v{step.version - 1}) are not at "
                    f"their URI any more: the run kept {config.trainer.keep_versions} (trainer.keep_versions). Begin "
                    "with another --from"
                )
            replayed = [member_of(state, step, identity) for identity in step.replayed]
            groups = *groups_of(state, step), *replay_group(step.train_step, replayed)
            ready = [reader.read(group) for group in groups]
            if step.scores is not None:
                recorded = reader.store.get_blobs([step.scores])[step.scores.sha256]
                ready = [restore_scores(group, recorded) for group in ready]
            if not any(group.samples for group in ready):
                why = "; ".join(f"{name}: {number}" for group in ready for name, number in group.refused.items())
                raise UserError(f"no step of these groups can be trained ({why}): capture the run with --blobs")
            imitation = imitation_of(state, step)
            beside = [reader.read(group) for group in (*imitation.beside, *imitation.feedback)]
            pretraining = is_pretraining(rules, StepStart(step.train_step, config.curation.dispatch.seed))
            metrics = learner.learn(ready, step.version - 1, never_stop, beside, pretraining).metrics
            loss = next(name for name in ("first_loss", "loss", "value_loss") if name in step.metrics)
            compared = {loss, "imitation_nll", "value_loss"} & step.metrics.keys()
            for group in imitation.phase:  # the next step may start from the weights that they make
                learner.imitate([reader.read(group)])
            result.append(
                ReproducedStep(
                    train_step=step.train_step,
                    version=step.version,
                    weights=f"v{step.version - 1}" if start is not None else "the step before",
                    recorded_loss=step.metrics[loss],
                    loss=metrics[loss],
                    equal=all(abs(metrics[name] - step.metrics[name]) <= TOLERANCE for name in compared),
                    refused=sum(group.refused.total() for group in (*ready, *beside)),
                )
            )
    return result


def weights_before(state: RunState, step: TrainedStep, base: str, cache: Path) -> Path | None:
    """Return the directory of the weights before a step, None if they are gone; remote ones are copied into ``cache``.

    Raises StorageUnreachable if storage is down, and UserError for weights that are not right beneath ``base``.
    """
    version = state.versions.get(step.version - 1)
    if version is None:
        return None
    for part in version.event.parts:
        if not weight_location.is_covered(part.uri, base):
            raise UserError(
                f"the bundle has version {part.version} at {part.uri[:500]!r}, which is not beneath {base!r}: "
                "if you trust that place, name the folder or URL above the version with --weights"
            )
    try:
        return resident_weights.materialize_weights(version.event, cache)
    except StorageUnreachable:
        raise
    except (weight_files.MissingWeights, weight_files.WrongDigest, OSError):
        return None


def steps_from(
    state: RunState, steps: int, first: int | None, rules: TrainingRules, source: Callable[[TrainedStep], Path | None]
) -> list[TrainedStep]:
    """Return the recorded steps to repeat; with a critic, which a bundle lacks, from the first on."""
    if not state.trained:
        raise UserError("the bundle has no trained steps: the run made none, or it is older than the topic `trained`")
    if rules.critic is not None:
        if first not in (None, 1):
            raise UserError(f"train step {first} needs the critic of the steps before: repeat it with --from 1")
        first = 1
    if first is None:
        startable = (number for number, step in sorted(state.trained.items()) if source(step))
        first = next(startable, min(state.trained))
    if first not in state.trained:
        raise UserError(f"no train step {first}: the bundle has {min(state.trained)} to {max(state.trained)}")
    return [step for number, step in sorted(state.trained.items()) if number >= first][:steps]


def groups_of(state: RunState, step: TrainedStep) -> list[CuratedGroup]:
    """Return a step's groups in order."""
    return groups_named(state, step, step.group_ids)


def groups_named(state: RunState, step: TrainedStep, names: Sequence[str]) -> list[CuratedGroup]:
    """Return groups that a step took; raise UserError if the bundle lacks one."""
    for group_id in names:
        if group_id not in state.groups:
            raise UserError(f"train step {step.train_step} took group {group_id}, which the bundle does not have")
    return [state.groups[group_id][0] for group_id in names]


def imitation_of(state: RunState, step: TrainedStep) -> StepImitation:
    """Return the successes of earlier groups that a step imitated."""

    def group_of(group_id: str, trajectories: Sequence[str]) -> CuratedGroup:
        return sft_group(group_id, [success_of(state, step, identity) for identity in trajectories])

    return StepImitation(
        beside=[group_of("imitated", step.imitated)] if step.imitated else [],
        phase=[group_of(f"phase-{number}", trajectories) for number, trajectories in enumerate(step.sft_updates)],
        feedback=tuple(groups_named(state, step, step.feedback)),
    )


def member_of(state: RunState, step: TrainedStep, trajectory_id: str) -> Member:
    """Return a trajectory that a step replayed, from its group."""
    for group_id in state.groups_of.get(trajectory_id, []):
        for member in state.groups[group_id][0].members:
            if member.trajectory_id == trajectory_id:
                return member
    raise UserError(
        f"train step {step.train_step} replayed trajectory {trajectory_id}, whose group the bundle does not have"
    )


def success_of(state: RunState, step: TrainedStep, trajectory_id: str) -> RememberedSuccess:
    """Return a success that a step imitated, from the success's group."""
    for group_id in state.groups_of.get(trajectory_id, []):
        for success in successes_of([state.groups[group_id][0]]):
            if success.trajectory_id == trajectory_id:
                return success
    raise UserError(
        f"train step {step.train_step} imitated trajectory {trajectory_id}, whose group the bundle does not have"
    )
