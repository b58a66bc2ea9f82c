"""What the core and its demonstrations have beside a plain policy gradient, and the values without it.

Most papers have only a part of it. So a chosen recipe resets each key to the value here, unless a chosen recipe's
``recipe.toml`` names the key. This is the one list of such keys.
"""

from typing import Any

from dart_streams.config.tables import put_key

WITHOUT: dict[str, Any] = {
    "curation.budget.dynamic": False,
    "curation.length.dynamic": False,
    "curation.entropy.keep": 1.0,
    "curation.pool.enabled": False,
    "curation.dispatch.choice": "even",
    "trainer.imitate.trajectories": 0,
    "trainer.entropy_coef": 0.0,
    "trainer.dual_clip.factor": 0.0,
    "feedback.enabled": False,
}
"""The value of each key without its rule."""


def reset_tables() -> dict[str, Any]:
    """Return the tables of all keys without their rules."""
    tables: dict[str, Any] = {}
    for key, value in WITHOUT.items():
        put_key(tables, key, value)
    return tables
