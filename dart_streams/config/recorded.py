"""Configurations that earlier versions recorded in bundles and run folders, with every key that they had."""

from typing import Any

from dart_streams.config.clip_bounds import resolve_bounds
from dart_streams.config.tables import key_values, put_key
from dart_streams.errors import ConfigError

RENAMED: dict[str, tuple[str, ...]] = {
    "env.isolation": ("env.miniwob.isolation",),
    "env.last_screen": ("env.miniwob.last_screen", "env.simulated.last_screen"),
    "env.call_timeout_s": ("env.miniwob.call_timeout_s", "env.simulated.call_timeout_s"),
    "rollout.kv_cache_gib": ("rollout.vllm.kv_cache_gib",),
    "rollout.parity_nats": ("rollout.vllm.parity_nats",),
    "curation.reward.shortest_path": ("recipes.mobilerl.shortest_path",),
    "curation.mobilerl.shortest_path": ("recipes.mobilerl.shortest_path",),
    "curation.dispatch.phases": ("recipes.craft-gui.phases",),
    "curation.craft_gui.phases": ("recipes.craft-gui.phases",),
    "curation.credit.step_weight": ("recipes.ui-s1.step_weight",),
    "curation.ui_s1.step_weight": ("recipes.ui-s1.step_weight",),
    "curation.credit.discount": ("recipes.ui-s1.discount",),
    "curation.ui_s1.discount": ("recipes.ui-s1.discount",),
    "evaluation.temperature": ("evaluation.temperatures",),
    "trainer.entropy_beta": ("trainer.entropy_coef",),
    "trainer.dual_clip": ("trainer.dual_clip.factor",),
    "trainer.tis_cap": ("trainer.truncate.cap",),
    "trainer.mask_low": ("trainer.mask.low",),
    "trainer.mask_high": ("trainer.mask.high",),
    "trainer.tokens_per_step": ("recipes.ring-lite.tokens_per_step",),
    "trainer.c3po.tokens_per_step": ("recipes.ring-lite.tokens_per_step",),
    "trainer.pulse.every": ("recipes.computerrl.every",),
    "trainer.pulse.updates": ("recipes.computerrl.updates",),
    "trainer.pulse.trajectories": ("recipes.computerrl.trajectories",),
    "trainer.entropulse.every": ("recipes.computerrl.every",),
    "trainer.entropulse.updates": ("recipes.computerrl.updates",),
    "trainer.entropulse.trajectories": ("recipes.computerrl.trajectories",),
}
"""Present places of renamed keys."""
CONSTANTS: dict[str, Any] = {
    "curation.difficulty.window": 16,
    "curation.dispatch.rest_after": 0,
    "curation.mobilerl.rest_after": 0,
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
SWITCHES: dict[str, tuple[str, Any]] = {
    "mobilerl": ("shortest_path", 0.0),
    "craft-gui": ("phases", []),
    "ui-s1": ("step_weight", 0.0),
    "ring-lite": ("tokens_per_step", 0),
    "computerrl": ("every", 0),
}
"""Recipes that were tables of every configuration: the key and the value that switched each off."""
IGNORED = frozenset(
    (
        *("run.evaluate", "trainer.pulse.kept", "store.blob_cache_mb", "env.request_attempts", "env.loop_limit"),
        *("curation.dispatch.rest_passes", "curation.mobilerl.rest_passes"),
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
    choose_recipes(result)
    trainer = result.get("trainer", {})
    try:
        resolve_bounds(trainer.get("objective", "ppo"), trainer.get("clip_low"), trainer.get("clip_high"))
    except ValueError:  # Earlier versions recorded those of ppo for every objective.
        result["trainer"] = {key: value for key, value in trainer.items() if key not in ("clip_low", "clip_high")}
    return result


def choose_recipes(tables: dict[str, Any]) -> None:
    """Choose the recipes whose tables are switched on in a configuration from before recipes; remove the others."""
    settings, chosen = tables.get("recipes", {}), list(tables.get("recipe", ()))
    for name, (key, off) in SWITCHES.items():
        if name in settings and name not in chosen:
            if settings[name].get(key, off) == off:
                del settings[name]
            else:
                chosen.append(name)
    if chosen:
        tables["recipe"] = chosen
