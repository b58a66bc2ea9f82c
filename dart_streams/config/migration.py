"""Keys of earlier versions: where they went, so that a recorded configuration can still be read.

Bundles and run folders hold a resolved configuration, with every key of the version that wrote it.
"""

from collections.abc import Iterator
from typing import Any

from dart_streams.errors import ConfigError

BACKENDS = ("env.miniwob", "env.simulated")

MOVED: dict[str, tuple[str, ...]] = {
    "env.isolation": ("env.miniwob.isolation",),
    "env.last_screen": tuple(f"{table}.last_screen" for table in BACKENDS),
    "env.call_timeout_s": tuple(f"{table}.call_timeout_s" for table in BACKENDS),
    "rollout.kv_cache_gib": ("rollout.vllm.kv_cache_gib",),
    "rollout.parity_nats": ("rollout.vllm.parity_nats",),
    "curation.reward.shortest_path": ("curation.mobilerl.shortest_path",),
    "curation.dispatch.rest_after": ("curation.mobilerl.rest_after",),
    "curation.dispatch.rest_passes": ("curation.mobilerl.rest_passes",),
    "curation.dispatch.phases": ("curation.craft_gui.phases",),
    "curation.credit.step_weight": ("curation.ui_s1.step_weight",),
    "curation.credit.discount": ("curation.ui_s1.discount",),
    "trainer.entropy_beta": ("trainer.entropy_coef",),
    "trainer.dual_clip": ("trainer.dual_clip.factor",),
    "trainer.tis_cap": ("trainer.truncate.cap",),
    "trainer.mask_low": ("trainer.mask.low",),
    "trainer.mask_high": ("trainer.mask.high",),
    "trainer.tokens_per_step": ("trainer.c3po.tokens_per_step",),
    "trainer.pulse.every": ("trainer.entropulse.every",),
    "trainer.pulse.updates": ("trainer.entropulse.updates",),
    "trainer.pulse.trajectories": ("trainer.entropulse.trajectories",),
    "trainer.pulse.kept": ("trainer.entropulse.kept",),
}
"""Old key to its new places."""

FIXED: dict[str, float] = {
    "curation.difficulty.window": 16,
    "curation.length.margin": 0,
    "curation.dispatch.backlog": 2.0,
    "curation.dispatch.attempts": 3,
    "curation.dispatch.patience": 4,
    "curation.dispatch.probe_every": 32,
    "trainer.weight_decay": 0.0,
}
"""Old keys that decide what a run does, now constants: a recorded configuration must have the constant's value."""

DROPPED = frozenset(
    {
        "run.evaluate",
        "store.blob_cache_mb",
        "env.request_attempts",
        "env.loop_limit",
        "rollout.heartbeat_s",
        "rollout.liveness_s",
        "rollout.retry_s",
        "trainer.prefetch_mb",
        "trainer.mismatch_alarm",
        "telemetry.metrics_every_s",
    }
)
"""Old keys of bounds and paces, now constants: what they were in an earlier run no longer matters."""


def migrated(tables: dict[str, Any], source: str) -> dict[str, Any]:
    """Return a recorded configuration with the present keys; a key given under both names keeps its present one.

    Raises :class:`ConfigError` if a key that is now a constant had another value: the run could not be repeated.
    """
    result: dict[str, Any] = {}
    old: list[tuple[str, Any]] = []
    for key, value in leaves(tables):
        if key in FIXED and value != FIXED[key]:
            raise ConfigError(f"{source}: recorded with {key} = {value}, which this version fixes at {FIXED[key]}")
        if key in MOVED:
            old.append((key, value))
        elif key not in FIXED and key not in DROPPED:
            put(result, key, value)
    for key, value in old:
        for place in MOVED[key]:
            put(result, place, value)
    if not tables.get("run", {}).get("evaluate", True):
        put(result, "evaluation.episodes", 0, over=True)
    return result


def leaves(tables: dict[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the keys with their whole place; an empty table is none."""
    for key, value in tables.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{place}{key}.")
        else:
            yield f"{place}{key}", value


def put(tables: dict[str, Any], place: str, value: Any, *, over: bool = False) -> None:
    """Set a key, unless it is set and not to be written over."""
    *sections, key = place.split(".")
    for section in sections:
        tables = tables.setdefault(section, {})
    if over or key not in tables:
        tables[key] = value


def hint(key: str) -> str | None:
    """Return what became of a key of an earlier version; None if it never was one."""
    if key == "run.evaluate":
        return "set evaluation.episodes = 0 for no evaluation"
    if key in MOVED:
        return f"it is now {' and '.join(MOVED[key])}"
    return "it is now a constant" if key in FIXED or key in DROPPED else None
