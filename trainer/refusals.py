"""Steps whose weights were refused, for not being finite: what a trainer that starts again leaves out, and how often.

A step that is made again of the same groups, from the same checkpoint, gives the same weights. So whoever starts after
a refusal goes on without the groups of that step. After ``MOST`` refusals in a row the cause is not in the groups, and
the trainer ends for good. With other settings the groups are trained after all.
"""

import hashlib
from pathlib import Path

import msgspec

from dart_streams import fsync as durable
from dart_streams.config import Config
from dart_streams.errors import UserError

FILE = "refused.json"
MAX_REFUSALS = 3
"""RefusedSteps without a checkpoint between them after which the trainer ends for good."""


class VersionRefused(UserError):
    """A step gave weights that are not finite; a trainer that is started again goes on without its groups."""

    exit_code = 1


class TrainingDiverged(UserError):
    """Step after step is not finite: a person must change something."""


class RefusedStep(msgspec.Struct, frozen=True, kw_only=True):
    """Step ``train_step`` of these groups gave weights of which ``fault`` says what is not finite."""

    train_step: int
    group_ids: tuple[str, ...]
    fault: str


class RefusedSteps(msgspec.Struct, frozen=True, kw_only=True):
    """The refusals of trainers with the settings of this digest, the oldest first."""

    settings: str
    refused: tuple[RefusedStep, ...] = ()

    @property
    def group_ids(self) -> frozenset[str]:
        """The groups that are left out."""
        return frozenset(group_id for refusal in self.refused for group_id in refusal.group_ids)

    def since(self, train_step: int) -> "RefusedSteps":
        """Return the refusals that came after a checkpoint of ``train_step`` steps."""
        return RefusedSteps(
            settings=self.settings, refused=tuple(one for one in self.refused if one.train_step > train_step)
        )

    def after(self, refusal: RefusedStep) -> "RefusedSteps":
        """Return the refusals with one more."""
        return RefusedSteps(settings=self.settings, refused=(*self.refused, refusal))

    def error(self, file: Path) -> UserError:
        """Return what the newest refusal ends the trainer with; ``file`` is where refusals are kept."""
        newest = self.refused[-1]
        made = f"step {newest.train_step} gave weights that are not finite: {newest.fault}. They are not published"
        if len(self.refused) < MAX_REFUSALS:
            return VersionRefused(
                f"{made}, and the checkpoint before stays. Started again, the trainer goes on from that, without the "
                f"step's groups ({', '.join(newest.group_ids[:8])}); with other settings it trains them"
            )
        return TrainingDiverged(
            f"{made}, and so it was {len(self.refused)} times in a row: lower trainer.learning_rate, or see whether "
            f"policy.path is sound, and start again from the checkpoint before. To try other groups with the same "
            f"settings, remove {file}"
        )

    def write(self, file: Path) -> None:
        """Write the refusals durably; raise OSError if that fails."""
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".partial")
        durable.write(partial, msgspec.json.encode(self))
        partial.replace(file)
        durable.sync(file.parent)


def read(file: Path, config: Config) -> RefusedSteps:
    """Return the refusals of trainers with these settings; none if the file is not there, or no such file."""
    settings = settings_digest(config)
    try:
        found = msgspec.json.decode(file.read_bytes(), type=RefusedSteps)
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
        return RefusedSteps(settings=settings)
    return found if found.settings == settings else RefusedSteps(settings=settings)


def settings_digest(config: Config) -> str:
    """Return the SHA-256 (hex) of what a step's weights depend on, but for its groups."""
    return hashlib.sha256(msgspec.json.encode((config.trainer, config.policy))).hexdigest()
