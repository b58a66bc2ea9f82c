"""Leaderboard of recipes: gain, difference to DART's rules, and cost, with 95 % intervals. Without torch."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import tomli_w

from benchmarks.learning.report import Estimate, compare_variants, estimate, format_points
from benchmarks.learning.results import LearningRun
from benchmarks.learning.variants import BASE

FILE = Path(__file__).with_name("recipes.toml")
TEMPERATURE = 1.0
"""Sampling temperature of the compared success rates."""


class LeaderboardRow(msgspec.Struct, frozen=True):
    """A recipe's gain in held-out success and its difference to the base, in points, and its cost.

    ``cost`` is the mean of core-seconds; ``verdict`` compares with the base.
    """

    recipe: str
    seeds: int
    gain: str
    to_base: str
    verdict: str
    steps: int
    core_seconds: int


def rank_recipes(runs: Sequence[LearningRun]) -> list[LeaderboardRow]:
    """Return the recipes by their gain, the largest first; each shares its seeds with the base."""
    compared = compare_variants(runs)
    rows = []
    for one in sorted(compared, key=lambda one: -one.gains[TEMPERATURE].mean):
        own = [run for run in runs if run.variant == one.variant]
        difference = one.differences.get(TEMPERATURE)
        rows.append(
            LeaderboardRow(
                recipe="DART's rules (base)" if one.variant == BASE else one.variant,
                seeds=one.seeds,
                gain=format_points(one.gains[TEMPERATURE]),
                to_base=format_points(difference) if difference else "",
                verdict=verdict_of(difference),
                steps=round(estimate([run.steps for run in own]).mean),
                core_seconds=round(estimate([run.cpu_s for run in own]).mean),
            )
        )
    return rows


def verdict_of(difference: Estimate | None) -> str:
    """Return what a difference to the base shows."""
    if difference is None:
        return "base"
    if not difference.excludes_zero:
        return "no difference seen"
    return "better" if difference.mean > 0 else "worse"


def write_variants(config: Path, folder: Path) -> Path:
    """Write a variants file of every recipe over a deployment of one's own; return its path."""
    file = folder / f"recipes-{config.stem}.toml"
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(tomli_w.dumps({"deployment": str(config.absolute()), "every_recipe": True}), encoding="utf-8")
    return file
