"""Steps refused because their weights were not finite.

Training the same groups from the same checkpoint gives the same weights, so a restarted trainer leaves the groups out.
After ``MAX_REFUSALS`` refusals in a row training ends for good. Under other settings the groups are trained again.
"""

import hashlib
from pathlib import Path

import msgspec

from dart_streams import fsync as durable
from dart_streams.config import Config
from dart_streams.config.text import MALFORMED
from dart_streams.errors import UserError

FILE = "refused.json"
MAX_REFUSALS = 3
"""Refusals without a checkpoint between them after which training ends for good."""


class VersionRefused(UserError):
    """A step's weights are not finite; a restarted trainer continues without its groups."""

    exit_code = 1


class TrainingDiverged(UserError):
    """Consecutive steps are not finite; the configuration must change."""


class RefusedStep(msgspec.Struct, frozen=True, kw_only=True):
    """Step ``train_step`` on these groups made weights that are not finite; ``fault`` names the first fault."""

    train_step: int
    group_ids: tuple[str, ...]
    fault: str


class RefusedSteps(msgspec.Struct, frozen=True, kw_only=True):
    """Refusals under the settings with this digest, oldest first."""

    settings: str
    refused: tuple[RefusedStep, ...] = ()

    @property
    def group_ids(self) -> frozenset[str]:
        """Groups to leave out."""
        return frozenset(group_id for refusal in self.refused for group_id in refusal.group_ids)

    def since(self, train_step: int) -> "RefusedSteps":
        """Return the refusals after a checkpoint of ``train_step`` steps."""
        later = tuple(refusal for refusal in self.refused if refusal.train_step > train_step)
        return RefusedSteps(settings=self.settings, refused=later)

    def after(self, refusal: RefusedStep) -> "RefusedSteps":
        """Return the refusals with ``refusal`` appended."""
        return RefusedSteps(settings=self.settings, refused=(*self.refused, refusal))

    def error(self, file: Path) -> UserError:
        """Return the error of the newest refusal; ``file`` holds the refusals."""
        newest = self.refused[-1]
        fault = f"step {newest.train_step} made weights that are not finite: {newest.fault}. They are not published"
        if len(self.refused) < MAX_REFUSALS:
            return VersionRefused(
                f"{fault}, and the previous checkpoint stays. A restarted trainer resumes from it without the step's "
                f"groups ({', '.join(newest.group_ids[:8])}), or with them under other settings"
            )
        return TrainingDiverged(
            f"{fault}, {len(self.refused)} times in a row: lower trainer.learning_rate or check policy.path, and "
            f"restart from the previous checkpoint. To try other groups with the same settings, remove {file}"
        )

    def write(self, file: Path) -> None:
        """Write the refusals durably; raise OSError on failure."""
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".partial")
        durable.write(partial, msgspec.json.encode(self))
        partial.replace(file)
        durable.sync(file.parent)


def read(file: Path, config: Config) -> RefusedSteps:
    """Return the refusals under these settings; empty if the file is missing or invalid."""
    settings = settings_digest(config)
    try:
        refusals = msgspec.json.decode(file.read_bytes(), type=RefusedSteps)
    except (FileNotFoundError, *MALFORMED):
        return RefusedSteps(settings=settings)
    return refusals if refusals.settings == settings else RefusedSteps(settings=settings)


def settings_digest(config: Config) -> str:
    """Return the SHA-256 (hex) of the settings that determine a step's weights."""
    return hashlib.sha256(msgspec.json.encode((config.trainer, config.policy))).hexdigest()
