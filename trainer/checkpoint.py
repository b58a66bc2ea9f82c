"""Checkpoints of model, optimizer and state, complete under their final name and verified before use."""

import pickle
import re
import shutil
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import structlog
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from dart_streams import crash_points
from dart_streams import fsync as durable
from dart_streams.config.text import MALFORMED
from dart_streams.disk_room import remedy_of
from dart_streams.errors import ServiceUnavailable, UserError
from trainer.checkpoint_manifest import MANIFEST, CheckpointFile, CheckpointManifest, read
from trainer.checkpoint_reader import METADATA, ForeignObject, TensorPlanner, TensorReader
from trainer.checkpoint_state import SCALING, drop_unsaved, load_state, sharded_state, unasked_tensors
from trainer.checkpoint_store import CheckpointStore
from trainer.learning import lora
from trainer.learning.critic import ValueHead
from trainer.ranks import Ranks
from trainer.state import TrainerState

KEPT_CHECKPOINTS = 2
STATE = "state.json"
CRITIC = "critic"
"""Key of the critic's tensors and of its optimizer state."""
NAME = re.compile(r"epoch-(\d+)-step-(\d+)")
PARTIAL = ".partial-"
DAMAGED = ".damaged-"

log = structlog.get_logger()


class CheckpointNotWritten(UserError):
    """A checkpoint could not be written; a restart trains the steps since the previous one again."""

    exit_code = 1


class CheckpointsDamaged(UserError):
    """All checkpoints of a run are damaged."""


@dataclass
class Checkpoints:
    """Checkpoints in a folder that all ranks share. All methods are collective.

    Each rank writes its shards; any number of ranks can read them. ``frozen_sha256`` is the digest of the frozen
    weights (adapter base, KL reference or vision tower). A ``critic`` is saved and restored with the policy. With a
    ``store`` a checkpoint is complete once it is there too, and one that the folder lacks or has damaged comes from
    there.
    """

    folder: Path
    ranks: Ranks
    frozen_sha256: str = ""
    critic: ValueHead | None = None
    store: CheckpointStore | None = None

    def __post_init__(self) -> None:
        # A single rank saves without collectives, of which torch warns.
        warnings.filterwarnings("ignore", "torch.distributed is disabled")

    def save(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, state: TrainerState, epoch: int) -> None:
        """Write a checkpoint to a partial folder, sync and rename it; keep the newest two.

        ``epoch`` must be equal on all ranks. Raises CheckpointNotWritten on all ranks if a disk is full or fails, or
        if the store does.
        """
        name = f"epoch-{epoch:04d}-step-{state.train_step:08d}"
        partial = self.folder / f"{PARTIAL}{name}"
        try:
            digests = self._write_tensors(partial, model, optimizer)
            with self.ranks.failing_together():
                if self.ranks.first:
                    self._complete(partial, self.folder / name, digests, state)
        except (CheckpointException, OSError) as error:
            if self.ranks.first:
                shutil.rmtree(partial, ignore_errors=True)
            advice = f", check that {self.store.uri} exists and is writable" if self.store else ""
            reason = reason_of(error)
            raise CheckpointNotWritten(
                f"checkpoint {name} can't be written to {self.folder} ({reason}), {remedy_of(reason, self.folder)}"
                f"{advice}, and restart the trainer; it resumes from the previous checkpoint"
            ) from error

    def _write_tensors(
        self, partial: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer
    ) -> list[CheckpointFile]:
        """Write the tensors of all ranks to ``partial``; return the digests of their files."""
        with self.ranks.failing_together():
            if self.ranks.first:
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir(parents=True)
        writer = dcp.FileSystemWriter(partial, thread_count=1, sync_files=True)
        # A single rank needs no plan, which takes a quarter of the time.
        dcp.save(self._own_state(model, optimizer), storage_writer=writer, no_dist=self.ranks.count == 1)
        own = f"__{self.ranks.rank}_*"
        with self.ranks.failing_together():
            shards = sorted(partial.glob(own))
            digests = [CheckpointFile.of(file) for file in shards]
            if self.store:
                self.store.upload(shards, partial.name.removeprefix(PARTIAL))
        return self.ranks.gathered(digests, CheckpointFile)

    def _own_state(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return what a checkpoint holds: the policy's :func:`sharded_state`, and that of the critic."""
        state = sharded_state(model, optimizer)
        if self.critic is not None:
            state[CRITIC] = sharded_state(self.critic.layer, self.critic.optimizer)
        return state

    def _complete(self, partial: Path, final: Path, digests: Sequence[CheckpointFile], state: TrainerState) -> None:
        """Write rank 0's files, rename the checkpoint to its final name, and remove older ones."""
        crash_points.reach(crash_points.IN_CHECKPOINT)
        for missing in [file.name for file in digests if not (partial / file.name).exists()]:
            raise FileNotFoundError(f"{missing} of another rank is missing: check that all ranks share this folder")
        durable.write(partial / STATE, msgspec.json.encode(state))
        files = (*digests, *(CheckpointFile.of(partial / name) for name in (METADATA, STATE)))
        manifest = CheckpointManifest(files=files, frozen_sha256=self.frozen_sha256)
        durable.write(partial / MANIFEST, manifest.encoded())
        durable.sync(partial)
        if self.store:
            self.store.upload((partial / name for name in (METADATA, STATE, MANIFEST)), final.name)
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
        durable.sync(self.folder)
        self._remove_older()

    def restore(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> TrainerState | None:
        """Load the newest undamaged checkpoint and return its state; None if there is none.

        Damaged ones are renamed and their steps trained again. Raises CheckpointsDamaged if all are damaged, UserError
        if the checkpoint is of another policy.
        """
        checkpoint = self._newest_undamaged()
        if checkpoint is None:
            return None
        newest, manifest = checkpoint
        frozen = self.ranks.from_first(self.frozen_sha256, str)
        if frozen and manifest.frozen_sha256 not in ("", frozen):
            raise UserError(
                f"checkpoint {newest} was trained with other frozen weights (adapter base, trainer.kl_beta "
                f"reference or vision tower): their SHA-256 was {manifest.frozen_sha256}, and is {frozen}. policy.path "
                "and, with adapters or a frozen tower, trainer.publish.dtype must not change within a run"
            )
        saved = self._own_state(model, optimizer)
        try:
            reader = TensorReader(newest)
            self._fit(saved, reader, newest)
            dcp.load(saved, storage_reader=reader, planner=TensorPlanner())
        except (CheckpointException, ForeignObject, pickle.UnpicklingError) as error:
            raise UserError(
                f"checkpoint {newest} is not of this policy ({reason_of(error)}): policy.path, trainer.lora (rank "
                "and targets), trainer.freeze_vision and a recipe's critic must not change within a run. Start another "
                "with `dart-streams run --init`"
            ) from error
        if lora.has_adapters(model) and float(saved[SCALING]) != lora.scaling_in(model):
            raise UserError(
                f"checkpoint {newest} has adapters scaled by {float(saved[SCALING]):g} (alpha / rank), not by "
                f"{lora.scaling_in(model):g}: trainer.lora.alpha must not change within a run"
            )
        load_state(model, optimizer, saved)
        if self.critic is not None:
            load_state(self.critic.layer, self.critic.optimizer, saved[CRITIC])
        state = state_in(newest)
        log.info("checkpoint restored", folder=str(newest), train_step=state.train_step, version=state.version)
        return state

    def _fit(self, saved: dict[str, Any], reader: TensorReader, newest: Path) -> None:
        """Leave out of ``saved`` the optimizer state that parameters without gradient never had.

        Raises UserError if the checkpoint has weights that ``saved`` has no place for.
        """
        names = set(reader.places.state_dict_metadata)
        if unasked := unasked_tensors(saved, names):
            raise UserError(
                f"checkpoint {newest} has {len(unasked)} trained tensors that are frozen now or not of this policy, "
                f"such as {unasked[0]}: policy.path, trainer.freeze_vision and trainer.lora must not change within a "
                "run. Set them as they were, or start another with `dart-streams run --init`"
            )
        drop_unsaved(saved, names)
        if self.critic is not None:
            drop_unsaved(saved[CRITIC], names, f"{CRITIC}.")

    def _newest_undamaged(self) -> tuple[Path, CheckpointManifest] | None:
        """Return the newest checkpoint whose files match its manifest; None if there is no checkpoint."""
        stored: set[str] = self.ranks.from_first(self._stored() if self.ranks.first else None, set[str])
        names = {place.name for place in self.complete()} if self.ranks.first else set()
        places = [self.folder / name for _, name in order_names(self.ranks.from_first(names | stored, set[str]))]
        damages: dict[Path, str] = {}
        for place in reversed(places):
            manifest, damage = self._inspect(place)
            if damage and place.name in stored:
                with self.ranks.failing_together(), self.ranks.first_working():
                    if self.ranks.first:
                        self._replace(place, damage)
                manifest, damage = self._inspect(place)
            if not damage and isinstance(manifest, CheckpointManifest):
                with self.ranks.failing_together():
                    if self.ranks.first:
                        self._set_aside(damages)
                return place, manifest
            damages[place] = damage
        if damages:
            listed = "; ".join(f"{place.name}: {damage}" for place, damage in damages.items())
            raise CheckpointsDamaged(
                f"no checkpoint in {self.folder} is intact ({listed}): restore one from a copy, start another run "
                "with `dart-streams run --init`, or remove the folder to train from the beginning"
            )
        return None

    def _stored(self) -> set[str]:
        """Return the names of complete checkpoints in the store; raise UserError if it refuses.

        Raises ServiceUnavailable if it is away, with which a supervisor starts the trainer again.
        """
        if self.store is None:
            return set()
        try:
            return {name for name in self.store.names() if NAME.fullmatch(name)}
        except OSError as error:
            kind = ServiceUnavailable if isinstance(error, ServiceUnavailable) else UserError
            raise kind(
                f"checkpoints in {self.store.uri} can't be listed ({error}): check trainer.checkpoints_uri, its "
                "credentials and its endpoint, and restart the trainer"
            ) from error

    def _replace(self, place: Path, damage: str) -> None:
        """Fetch the store's copy of a checkpoint that is missing or damaged here."""
        assert self.store is not None, "it is among the stored ones"
        if place.exists():
            self._set_aside({place: damage}, "its stored copy")
        partial = self.folder / f"{PARTIAL}{place.name}"
        if fault := self.store.fetch(place.name, partial):
            log.error("stored checkpoint damaged", uri=f"{self.store.uri}/{place.name}", reason=fault)
        partial.rename(place)
        log.info("checkpoint fetched", uri=f"{self.store.uri}/{place.name}", folder=str(place))

    def _inspect(self, place: Path) -> tuple[CheckpointManifest | str, str]:
        """Return a checkpoint's manifest and the damage to it or to its files, empty if there is none."""
        kind = CheckpointManifest | str
        manifest: CheckpointManifest | str = self.ranks.from_first(read(place) if self.ranks.first else None, kind)
        return manifest, manifest if isinstance(manifest, str) else self._damage(place, manifest)

    def _damage(self, place: Path, manifest: CheckpointManifest) -> str:
        """Return the faults of a checkpoint's files; each rank checks a share of them."""
        share = manifest.files[self.ranks.rank :: self.ranks.count]
        faults = self.ranks.gathered([damage for file in share if (damage := file.damage_in(place))], str)
        return ", ".join(faults)

    def _set_aside(self, damages: Mapping[Path, str], other: str = "the previous one") -> None:
        """Rename damaged checkpoints so that they are not found again; training resumes from ``other``."""
        for place, damage in ((place, damage) for place, damage in damages.items() if place.exists()):
            aside = place.with_name(f"{DAMAGED}{place.name}")
            log.error(
                f"checkpoint damaged: resuming from {other}", folder=str(place), reason=damage, kept_as=str(aside)
            )
            shutil.rmtree(aside, ignore_errors=True)
            place.rename(aside)
        if damages:
            durable.sync(self.folder)

    def _remove_older(self) -> None:
        """Remove checkpoints, also damaged ones, older than the newest :data:`KEPT_CHECKPOINTS`."""
        newest = self._numbered()[-KEPT_CHECKPOINTS:]
        for number, place in [*self._numbered(), *self._numbered(DAMAGED)]:
            if number < newest[0][0]:
                shutil.rmtree(place, ignore_errors=True)
        if self.store:
            # This checkpoint was stored before, so an older one is needed only if both are damaged.
            older = [name for number, name in order_names(self.store.folders()) if number < newest[0][0]]
            self.store.remove(older)

    def remove_partial(self, epoch: int) -> None:
        """Remove partial checkpoints of earlier epochs."""
        for path in self.folder.glob(f"{PARTIAL}*"):
            match = NAME.fullmatch(path.name.removeprefix(PARTIAL))
            if match and int(match[1]) < epoch:
                shutil.rmtree(path, ignore_errors=True)

    def complete(self) -> list[Path]:
        """Return complete checkpoints ordered by epoch and step, newest last."""
        return [place for _, place in self._numbered()]

    def _numbered(self, prefix: str = "") -> list[tuple[tuple[int, int], Path]]:
        """Return the folders with this prefix, ordered by epoch and step."""
        names = (place.name.removeprefix(prefix) for place in self.folder.glob(f"{prefix}e*"))
        return [(number, self.folder / f"{prefix}{name}") for number, name in order_names(names)]


def order_names(names: Iterable[str]) -> list[tuple[tuple[int, int], str]]:
    """Return epoch, step and name of the checkpoints among ``names``, in order."""
    matches = filter(None, map(NAME.fullmatch, names))
    return sorted(((int(match[1]), int(match[2])), match[0]) for match in matches)


def state_in(checkpoint: Path) -> TrainerState:
    """Return the state of an undamaged checkpoint."""
    try:
        return msgspec.json.decode((checkpoint / STATE).read_bytes(), type=TrainerState)
    except MALFORMED as error:
        raise UserError(
            f"checkpoint {checkpoint} is intact, but this dart_streams cannot read its {STATE} ({error}): resume it "
            "with the version that wrote it"
        ) from error


def reason_of(error: BaseException) -> str:
    """Return the last line of an error; torch puts the tracebacks of all ranks before it."""
    return str(error).strip().rpartition("\n")[2] or type(error).__name__
