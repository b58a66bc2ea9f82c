"""Configurations that earlier versions recorded in bundles and run folders, with every key that they had."""

from collections.abc import Iterator
from typing import Any

from dart_streams.config.clip_bounds import resolve_bounds
from dart_streams.errors import ConfigError

RENAMED: dict[str, tuple[str, ...]] = {
    "env.isolation": ("env.miniwob.isolation",),
    "env.last_screen": ("env.miniwob.last_screen", "env.simulated.last_screen"),
    "env.call_timeout_s": ("env.miniwob.call_timeout_s", "env.simulated.call_timeout_s"),
    "rollout.kv_cache_gib": ("rollout.vllm.kv_cache_gib",),
    "rollout.parity_nats": ("rollout.vllm.parity_nats",),
    "curation.reward.shortest_path": ("curation.mobilerl.shortest_path",),
    "curation.dispatch.rest_after": ("curation.mobilerl.rest_after",),
    "curation.dispatch.rest_passes": ("curation.mobilerl.rest_passes",),
    "curation.dispatch.phases": ("curation.craft_gui.phases",),
    "curation.credit.step_weight": ("curation.ui_s1.step_weight",),
    "curation.credit.discount": ("curation.ui_s1.discount",),
    "evaluation.temperature": ("evaluation.temperatures",),
    "trainer.entropy_beta": ("trainer.entropy_coef",),
    "trainer.dual_clip": ("trainer.dual_clip.factor",),
    "trainer.tis_cap": ("trainer.truncate.cap",),
    "trainer.mask_low": ("trainer.mask.low",),
    "trainer.mask_high": ("trainer.mask.high",),
    "trainer.tokens_per_step": ("trainer.c3po.tokens_per_step",),
    "trainer.pulse.every": ("trainer.entropulse.every",),
    "trainer.pulse.updates": ("trainer.entropulse.updates",),
    "trainer.pulse.trajectories": ("trainer.entropulse.trajectories",),
}
"""Present places of renamed keys."""
CONSTANTS: dict[str, Any] = {
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
    (
        *("run.evaluate", "trainer.pulse.kept", "store.blob_cache_mb", "env.request_attempts", "env.loop_limit"),
        *("rollout.heartbeat_s", "rollout.liveness_s", "rollout.retry_s", "trainer.prefetch_mb"),
        *("trainer.mismatch_alarm", "trainer.entropulse.kept", "telemetry.metrics_every_s"),
    )
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
    trainer = result.get("trainer", {})
    try:
        resolve_bounds(trainer.get("objective", "ppo"), trainer.get("clip_low"), trainer.get("clip_high"))
    except ValueError:  # Earlier versions recorded those of ppo for every objective.
        result["trainer"] = {key: value for key, value in trainer.items() if key not in ("clip_low", "clip_high")}
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
