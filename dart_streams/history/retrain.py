"""Makes recorded optimiser steps again from a bundle, on one machine, without services: to look into a bad one.

Each step starts from the weights that it started from, as long as their version is still at its URI; the first must.
Later steps whose weights are gone go on from the step before, as the trainer did, but with an optimiser that has no
past beyond the first step made here.
"""

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from dart_streams.config import Config
from dart_streams.errors import UserError
from dart_streams.history.bundle import Bundle
from dart_streams.history.bundle_inputs import config_of, tasks_of
from dart_streams.history.lineage import READ
from dart_streams.history.run_log import read_log
from dart_streams.history.run_state import RunState
from dart_streams.policy import cpu_features, recipe
from dart_streams.policy import weights as weight_files
from dart_streams.policy.rendering import Renderer
from dart_streams.store.blobs import MissingBlob
from topics.curated import CuratedGroup
from topics.observations import Observation
from topics.trained import TrainedStep
from topics.values import BlobRef
from trainer.data.prefetch import GroupReader, ReadyGroup
from trainer.learning import model as policy
from trainer.learning.learner import Learner, never
from trainer.learning.ranks import Ranks, joined

TOLERANCE = 1e-5
"""How far a loss made again may be from the recorded one."""


class Reproduced(msgspec.Struct, frozen=True, kw_only=True):
    """A step made again; ``weights`` says where it started from: the recorded version, or the step made before."""

    train_step: int
    version: int
    weights: str
    recorded_loss: float
    loss: float
    equal: bool
    refused: int


class Recording:
    """The store as a bundle has it: what :class:`GroupReader` asks of it."""

    def __init__(self, bundle: Bundle, known: RunState, trajectories: Iterable[str]) -> None:
        self.observations = {
            identity: [
                seen for step in sorted(known.observations[identity]) if (seen := known.observation(identity, step))
            ]
            for identity in trajectories
            if identity in known.observations
        }
        shown = {
            seen.screenshot.sha256
            for steps in self.observations.values()
            for seen in steps
            if seen.screenshot is not None
        }
        self.blobs = {blob.sha256: blob.data for blob in bundle.blobs() if blob.sha256 in shown}

    def steps_many(self, ids: Sequence[str]) -> dict[str, list[Observation]]:
        """Return the observations of several trajectories."""
        return {identity: self.observations.get(identity, []) for identity in ids}

    def get_blobs(self, refs: Iterable[BlobRef]) -> dict[str, bytes]:
        """Return screenshots by sha256; raise :class:`MissingBlob` for the first that the bundle lacks."""
        wanted = {ref.sha256: ref for ref in refs}
        for sha256, ref in wanted.items():
            if sha256 not in self.blobs:
                raise MissingBlob(ref, "the bundle does not have it")
        return {sha256: self.blobs[sha256] for sha256 in wanted}


def run(path: Path, steps: int, first: int | None) -> list[Reproduced]:
    """Make ``steps`` recorded steps again, from step ``first`` on (by default the first whose weights are there).

    Raises
    ------
    BundleError
        If the bundle lacks something: it has to be captured with ``--blobs``.
    UserError
        If there is no such step, its groups or its first weights are gone, or the model's directory is not there.
    """
    bundle = Bundle(path)
    config, known = config_of(bundle), RunState(keep_steps=True).fold(read_log(bundle, READ))
    cpu_features.limit_isa(config.trainer.dtype, Path(config.run.state_dir))
    folder = Path(config.policy.path) if config.policy.path else recipe.folder(config, tasks_of(bundle))
    chosen = steps_from(known, steps, first)
    members = {member.trajectory_id for step in chosen for group in groups_of(known, step) for member in group.members}
    recording = Recording(bundle, known, members)
    renderer = Renderer(folder, config.policy.min_pixels, config.policy.max_pixels)
    reader = GroupReader(recording, renderer, config.policy)  # type: ignore[arg-type]
    with joined() as ranks:
        return made_again(chosen, known, config, folder, renderer, reader, ranks)


def made_again(
    chosen: Sequence[TrainedStep],
    known: RunState,
    config: Config,
    folder: Path,
    renderer: Renderer,
    reader: GroupReader,
    ranks: Ranks,
) -> list[Reproduced]:
    """Make the chosen steps in order."""
    result: list[Reproduced] = []
    learner: Learner | None = None
    for step in chosen:
        start = weights_before(known, step)
        if start is not None:
            learner = learner_from(start, folder, renderer, config, ranks)
        if learner is None:
            raise gone(step, config)
        ready = [reader.read(group) for group in groups_of(known, step)]
        refuse_missing(ready)
        loss = learner.learn(ready, step.version - 1, never).figures["loss"]
        recorded = step.metrics["loss"]
        result.append(
            Reproduced(
                train_step=step.train_step,
                version=step.version,
                weights=f"v{step.version - 1}" if start is not None else "the step before",
                recorded_loss=recorded,
                loss=loss,
                equal=abs(loss - recorded) <= TOLERANCE,
                refused=sum(sum(group.refused.values()) for group in ready),
            )
        )
    return result


def steps_from(known: RunState, steps: int, first: int | None) -> list[TrainedStep]:
    """Return the recorded steps to make again."""
    if not known.trained:
        raise UserError("the bundle has no trained steps: the run made none, or it is older than the topic `trained`")
    if first is None:
        there = (number for number, step in sorted(known.trained.items()) if weights_before(known, step) is not None)
        first = next(there, min(known.trained))
    if first not in known.trained:
        raise UserError(f"no train step {first}: the bundle has {min(known.trained)} to {max(known.trained)}")
    return [step for number, step in sorted(known.trained.items()) if number >= first][:steps]


def groups_of(known: RunState, step: TrainedStep) -> list[CuratedGroup]:
    """Return a step's groups in the order it took them."""
    for group_id in step.group_ids:
        if group_id not in known.groups:
            raise UserError(f"train step {step.train_step} took group {group_id}, which the bundle does not have")
    return [known.groups[group_id][0] for group_id in step.group_ids]


def weights_before(known: RunState, step: TrainedStep) -> Path | None:
    """Return the directory of the weights that a step started from, or None if they are gone."""
    version = known.versions.get(step.version - 1)
    if version is None:
        return None
    try:
        return weight_files.fetch(version.event, Path(tempfile.gettempdir()))
    except (weight_files.MissingWeights, weight_files.WrongDigest, OSError):
        return None


def learner_from(start: Path, folder: Path, renderer: Renderer, config: Config, ranks: Ranks) -> Learner:
    """Return a learner with a version's weights; what it stays near to (``kl_beta``) are still the model's own."""
    with tempfile.TemporaryDirectory(prefix="reproduce-") as scratch:
        mixed = Path(scratch)
        for file in folder.iterdir():
            if file.suffix != ".safetensors":
                (mixed / file.name).symlink_to(file.resolve())
        (mixed / weight_files.FILE).symlink_to((start / weight_files.FILE).resolve())
        learner = Learner(mixed, renderer, config.trainer, ranks)
    if learner.reference is not None:
        learner.reference = policy.load(folder, renderer, ranks.device).requires_grad_(False)
    return learner


def refuse_missing(ready: Sequence[ReadyGroup]) -> None:
    """Raise :class:`UserError` if nothing of the groups can be trained: most likely the screenshots are missing."""
    if not any(group.samples for group in ready):
        why = "; ".join(f"{name}: {number}" for group in ready for name, number in group.refused.items())
        raise UserError(f"no step of these groups can be trained ({why}): capture the run with --blobs")


def gone(step: TrainedStep, config: Config) -> UserError:
    """Return the error for a first step whose weights are not there."""
    return UserError(
        f"the weights that train step {step.train_step} started from (v{step.version - 1}) are not at their URI any "
        f"more: the run kept {config.trainer.keep_versions} (trainer.keep_versions). Begin with another --from"
    )
