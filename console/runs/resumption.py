"""Decides which keys a resumed run may change: none on which its records, rows and checkpoints depend. Pure."""

from collections.abc import Sequence
from typing import Any

import msgspec

from dart_streams.config import Config
from dart_streams.config.tables import key_values
from dart_streams.errors import ConfigError

OWN = frozenset({"run.id", "run.state_dir", "bus.prefix", "tasks.file"})
"""Keys that a run's folder sets."""
KEPT = {
    "store.keyspace": "its rows are there",
    "store.objects": "its screenshots are there",
    "env.backend": "its trajectories are of that environment",
    "env.miniwob.partial_credit": "its rewards are of that scale",
    "env.desktop.width": "its screens have that size",
    "env.desktop.height": "its screens have that size",
    "env.phone": "its screens have that size, and its prompts those functions",
    "env.installed.options": "its trajectories are of that environment",
    "policy.dialect": "its answers are written in it",
    "policy": "its prompts and its weights are of that policy",
    "warmup": "its first weights came of it",
    "recipe": "its decisions follow from its rules, and are repeated from the log",
    "recipes": "its decisions follow from its rules, and are repeated from the log",
    "curation": "its decisions follow from it, and are repeated from the log",
    "feedback.enabled": "its agent would begin anew, in the middle of the log",
    "feedback.reward": "its decisions follow from it, and are repeated from the log",
    "feedback.credit_taken_over": "its decisions follow from it, and are repeated from the log",
    "tasks.proposals": "its agent would begin anew, in the middle of the log",
    "trainer.lora": "its checkpoints have those layers",
    "trainer.freeze_vision": "its checkpoints have the vision tower, or are beside a frozen one",
    "trainer.weights_uri": "its versions are there",
    "trainer.checkpoints_uri": "its checkpoints are there",
}
"""Keys, or tables of keys, that may not change, and the reason; the first match counts."""
OF_WEIGHTS = (
    *("policy", "warmup", "trainer.lora", "trainer.freeze_vision"),
    *("trainer.weights_uri", "trainer.checkpoints_uri"),
)
"""Keys among them that a run whose policy is an endpoint may change."""


class ChangedKey(msgspec.Struct, frozen=True):
    """A key with another value than the run's; ``reason`` says why it may not change, empty if it may."""

    place: str
    recorded: Any
    given: Any
    reason: str = ""

    def __str__(self) -> str:
        why = f" ({self.reason})" if self.reason else ""
        return f"{self.place}: {format_value(self.recorded)} -> {format_value(self.given)}{why}"


def changed_keys(recorded: Config, given: Config) -> list[ChangedKey]:
    """Return the keys that differ, except those that a run's folder sets."""
    before, after = (dict(key_values(msgspec.to_builtins(config))) for config in (recorded, given))
    trained = recorded.rollout.engine != "openai" or recorded.rollout.openai.trainable
    return [
        ChangedKey(place, before.get(place), after.get(place), why_kept(place, trained=trained))
        for place in dict.fromkeys([*before, *after])
        if place not in OWN and before.get(place) != after.get(place)
    ]


def why_kept(place: str, *, trained: bool) -> str:
    """Return why a key may not change, empty if it may; a ``trained`` run has its own weights."""
    for key, reason in KEPT.items():
        if f"{place}.".startswith(f"{key}."):
            return reason if trained or key not in OF_WEIGHTS else ""
    return ""


def refuse_changes(changed: Sequence[ChangedKey], run_id: str) -> None:
    """Raise :class:`ConfigError` if there are keys that a resumed run may not change."""
    if lines := "".join(f"\n  {key}" for key in changed if key.reason):
        raise ConfigError(
            f"run {run_id!r} can't go on with this configuration, because its log would not mean the same:{lines}\n"
            "Leave these keys as they were, leave CONFIG out, or start a new run. See --resume in docs/cli.md"
        )


def format_value(value: Any) -> str:
    """Return a value as TOML."""
    return "none" if value is None else msgspec.json.encode(value).decode()
