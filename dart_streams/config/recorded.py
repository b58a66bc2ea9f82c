"""Configurations that earlier versions recorded in bundles and run folders, with every key that they had."""

from collections.abc import Iterator
from typing import Any

from dart_streams.errors import ConfigError

RENAMED: dict[str, tuple[str, ...]] = {
    "env.isolation": ("env.miniwob.isolation",),
    "env.call_timeout_s": ("env.miniwob.call_timeout_s", "env.simulated.call_timeout_s"),
    "rollout.kv_cache_gib": ("rollout.vllm.kv_cache_gib",),
    "curation.reward.shortest_path": ("curation.mobilerl.shortest_path",),
    "curation.dispatch.rest_after": ("curation.mobilerl.rest_after",),
    "curation.dispatch.rest_passes": ("curation.mobilerl.rest_passes",),
    "curation.dispatch.phases": ("curation.craft_gui.phases",),
    "evaluation.temperature": ("evaluation.temperatures",),
    "trainer.entropy_beta": ("trainer.entropy_coef",),
    "trainer.tis_cap": ("trainer.truncate.cap",),
}
"""Present places of renamed keys."""
CONSTANTS: dict[str, Any] = {
    "run.evaluate": True,
    "curation.difficulty.window": 16,
    "curation.length.margin": 0,
    "curation.entropy.enabled": True,
    "curation.pool.size": 4,
    "curation.dispatch.backlog": 2.0,
    "curation.dispatch.attempts": 3,
    "curation.dispatch.patience": 4,
    "curation.dispatch.probe_every": 32,
    "trainer.weight_decay": 0.0,
}
"""Values of former keys that decide what a run does: a recorded configuration must have the same."""
IGNORED = frozenset(
    {
        *("store.blob_cache_mb", "env.request_attempts", "env.loop_limit", "rollout.heartbeat_s"),
        *("rollout.liveness_s", "rollout.retry_s", "trainer.prefetch_mb", "trainer.mismatch_alarm"),
        *("trainer.entropulse.kept", "telemetry.metrics_every_s"),
    }
)
"""Former keys of bounds and intervals, which do not matter after the run."""


def upgrade_recorded(tables: dict[str, Any], source: str) -> dict[str, Any]:
    """Return a recorded configuration with the present keys; a key given under both names keeps its present one.

    Raises :class:`ConfigError` if a former key had another value than its constant: the run could not be repeated.
    """
    result: dict[str, Any] = {}
    values = dict(key_values(tables))
    for key, value in sorted(values.items(), key=lambda item: item[0] in RENAMED):
        if value != CONSTANTS.get(key, value):
            raise ConfigError(f"{source}: recorded with {key} = {value}, which this version fixes at {CONSTANTS[key]}")
        if key not in CONSTANTS and key not in IGNORED:
            for place in RENAMED.get(key, (key,)):
                put_key(result, place, [value] if key == "evaluation.temperature" else value)
    return result


def key_values(tables: dict[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each key's whole place and value."""
    for key, value in tables.items():
        if isinstance(value, dict):
            yield from key_values(value, f"{place}{key}.")
        else:
            yield f"{place}{key}", value


def put_key(tables: dict[str, Any], place: str, value: Any) -> None:
    """Set a key unless it is set; raise :class:`ConfigError` if a table of its place is a value."""
    *sections, key = place.split(".")
    for section in sections:
        tables = tables.setdefault(section, {})
        if not isinstance(tables, dict):
            raise ConfigError(f"{place}: {section} is a value, not a table")
    tables.setdefault(key, value)
