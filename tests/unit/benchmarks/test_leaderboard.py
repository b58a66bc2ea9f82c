"""The leaderboard of recipes: its rows, its verdicts, and its variants over a deployment of one's own."""

from pathlib import Path

import pytest

from benchmarks.learning import leaderboard, variants
from benchmarks.learning.report import estimate
from benchmarks.learning.results import Evaluated, LearningRun
from dart_streams.config import parse
from dart_streams.config.recipes import known_recipes


def run_of(variant: str, seed: int, gain: float, cpu_s: float = 60.0) -> LearningRun:
    rates = [[Evaluated(t, rate, {}) for t in (1.0, 0.5, 0.0)] for rate in (0.3, 0.3 + gain)]
    return LearningRun(
        variant=variant,
        seed=seed,
        made_by=variant,
        before=rates[0],
        curve=[],
        after=rates[1],
        steps=80,
        metrics={},
        cpu_s=cpu_s,
    )


def test_recipes_are_listed_by_gain_with_what_their_interval_shows():
    gains = {"base": (0.2, 0.21, 0.19), "more": (0.3, 0.31, 0.3), "alike": (0.1, 0.3, 0.2), "less": (0.05, 0.06, 0.04)}
    runs = [run_of(name, seed, gain) for name, own in gains.items() for seed, gain in enumerate(own)]
    rows = leaderboard.rank_recipes(runs)
    assert [(row.recipe, row.verdict) for row in rows] == [
        ("more", "better"),
        ("DART's rules (base)", "base"),
        ("alike", "no difference seen"),
        ("less", "worse"),
    ]
    assert [row.seeds for row in rows] == [3] * 4 and rows[0].core_seconds == 60


@pytest.mark.parametrize(("values", "verdict"), [([0.1], "no difference seen"), ([0.1, 0.11], "better")])
def test_one_seed_shows_no_difference(values: list[float], verdict: str):
    assert leaderboard.verdict_of(estimate(values)) == verdict


def test_recipes_that_recorded_screens_cannot_show_are_left_out():
    found = variants.read(leaderboard.FILE)
    reasons = {name: variants.left_out_reason(name, parse({"recipe": name})) for name in known_recipes()}
    assert {name: reason for name, reason in reasons.items() if reason} == {
        "distillation": "it asks a server",
        "gui-actor": "it does not train",
        "judge": "it asks a server",
        "outcome-model": "recipes.outcome-model.model_file is not set",
    }
    assert found.keys().isdisjoint({"distillation", "gui-actor", "judge", "outcome-model"})


def test_every_recipe_is_a_variant_of_a_deployment_of_ones_own(tmp_path: Path):
    deployment = tmp_path / "mine.toml"
    deployment.write_text('tasks.file = "t.toml"\ncuration.entropy.keep = 0.9\n')
    found = variants.read(leaderboard.write_variants(deployment, tmp_path / "bench"))
    assert {"base", "mobilerl", "ui-s1"} <= found.keys() <= {"base", *known_recipes()}
    assert found["ui-s1"].curation.entropy.keep == 1.0, "the recipe's keys win"
    assert {config.tasks.file for config in found.values()} == {str(tmp_path / "t.toml")}
