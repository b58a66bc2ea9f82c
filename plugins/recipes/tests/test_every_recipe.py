"""Every recipe in a circle in memory: versions are made, and decisions replay to the same bytes."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.curation_world import Odds, SimulatedCircle
from console.bundles import whatif
from console.bundles.bundle_inputs import config_of, tasks_of
from console.runs.bundle import Bundle
from dart_streams.config import Config, differences, load, parse
from dart_streams.config.differences import compare_settings, describe_differences, read_paper
from dart_streams.config.extras import WITHOUT
from dart_streams.config.recipes import known_recipes, recipe_folder, rules_module, settings_type
from dart_streams.config.tables import key_values, read_tables
from dart_streams.config.tasks import TaskSet
from dart_streams.curation.hooks import Turn
from dart_streams.curation.recipes import bind_rules
from dart_streams.curation.task_scheduler import TaskState
from dart_streams.errors import ConfigError
from plugins.recipes.tests.agents import DEMONSTRATION, groups_in, orders_in, played, recipe_config, task_set
from tests.installed_packages import install_recipe
from tests.sources import CORE as PACKAGES
from tests.sources import ROOT
from topics.rollout_orders import Guide

RECIPES = known_recipes()
GOLDEN = Path(__file__).parents[3] / "tests/unit/golden" / "bundle.v1.dart"
DEPLOYMENTS = [
    file
    for file in sorted(DEMONSTRATION.parent.rglob("*.toml"))
    if not {"pages", "osworld"} & read_tables(file, "no file").keys()
]


class RestoredCircle(SimulatedCircle):
    """A circle whose agents are restored from their stored states before each record."""

    def apply(self, agent, record):
        kind = agent.state
        self.states[agent.name] = msgspec.json.decode(msgspec.json.encode(self.states[agent.name]), type=kind)
        return super().apply(agent, record)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains_and_its_decisions_replay_to_the_same_bytes(name: str):
    config = recipe_config(name)
    circle = played(config)
    assert circle.trainer.version >= 2
    restored = RestoredCircle(config, task_set(config), Odds(faults=0.02, lift=0.002)).play_rounds(400)
    assert digests(restored) == digests(circle)


def digests(circle: SimulatedCircle) -> dict[str, str]:
    """Return the digest of each agent's decisions."""
    return {name: state.progress.digest for name, state in circle.states.items()}


@pytest.mark.parametrize("name", RECIPES)
def test_an_outage_changes_no_task_s_weight(name: str):
    """A rollout that is lost to a fault says nothing about the policy."""
    config = recipe_config(name)
    tasks = TaskSet([*task_set(config).pages[:1]])
    circle = SimulatedCircle(config, tasks, Odds(faults=1.0)).play_rounds(300)
    weight = bind_rules(config).task_weight
    for task in tasks.train:
        turn = Turn(task.task_id, TaskState(), 0, task.max_steps)
        assert weight(circle.states["dispatch"].memories, turn) == weight({}, turn)


@pytest.mark.parametrize("name", RECIPES)
def test_each_attempt_of_a_sample_has_the_guide_of_the_first(name: str):
    config = recipe_config(name, recipes={"gui-bee": {"start_share": 1.0}} if name == "gui-bee" else {})
    circle = SimulatedCircle(config, task_set(config), Odds(faults=0.4)).play_rounds(300)
    guides: dict[tuple[str, int], set[Guide | None]] = {}
    for order in orders_in(circle):
        guides.setdefault((order.group_id, order.sample), set()).add(order.guide)
    assert len({order.attempt for order in orders_in(circle)}) == 3
    assert [sample for sample, of_attempts in guides.items() if len(of_attempts) > 1 and sample[0] != "explore"] == []


@pytest.mark.parametrize("name", RECIPES)
def test_a_recorded_run_is_simulated_with_a_recipe(name: str):
    """The recorded keys, such as clip bounds of another objective, must not contradict those of the recipe."""
    bundle = Bundle(GOLDEN)
    own, variant = config_of(bundle), config_of(bundle, [f"recipe={name}"])
    *_, simulated = whatif.compare(whatif.RecordedOutcomes(bundle), tasks_of(bundle), own, {name: variant})
    assert simulated.name == name and simulated.steps_trained > 0


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_has_its_files_and_documented_settings(name: str):
    folder = recipe_folder(name)
    page = (folder / "README.md").read_text()
    assert {line for line in page.splitlines() if line.startswith("## ")} >= {
        "## What the paper does",
        "## What differs here",
        "## Values it is held to",
    }
    keys = [field.name for field in msgspec.structs.fields(settings_type(name))]
    assert [key for key in keys if f"`{key}`" not in page] == [], "the page names each key"


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Install a package with a recipe that contradicts UI-S1, as pip does."""
    rules = "from dart_streams.curation.hooks import Rules\nRULES = Rules(step_advantages=lambda *_: [])\n"
    files = {"recipe.toml": "[curation.entropy]\nkeep = 0.5\n", "rules.py": rules}
    install_recipe(tmp_path, monkeypatch, "other", files)
    return "other"


def test_unknown_and_contradictory_recipes_are_refused_with_both_names(other: str):
    with pytest.raises(ConfigError, match="no recipe 'mobilrl': did you mean 'mobilerl'"):
        parse({"recipe": "mobilrl"})
    with pytest.raises(ConfigError, match="recipe does not name 'ui-s1'"):
        parse({"recipes": {"ui-s1": {}}})
    with pytest.raises(ConfigError, match=r"'dart' sets curation.entropy.keep to 0.8 and 'other' to 0.5"):
        parse({"recipe": ["dart", other]})
    both = parse({"recipe": ["dart", "ui-s1", other], "curation": {"entropy": {"keep": 0.7}}})
    assert both.curation.entropy.keep == 0.7, "the file decides"
    with pytest.raises(ConfigError, match="'ui-s1' and 'other' both replace the rule step_advantages"):
        bind_rules(both)


def test_two_recipes_of_different_rules_go_together():
    config = recipe_config("mobilerl", "ui-s1")
    group = groups_in(played(config))[0]
    assert config.recipe == ("mobilerl", "ui-s1") and group.members[0].step_advantages


def test_a_file_wins_over_its_recipe_and_the_command_line_over_both(tmp_path: Path):
    file = tmp_path / "run.toml"
    file.write_text('recipe = "ui-s1"\n[curation.entropy]\nkeep = 0.9\n')
    assert load(file).curation.entropy.keep == 0.9
    assert load(file, recipe=["ui-s1"]).curation.entropy.keep == 1.0


def settings_of(config: Config) -> dict[str, Any]:
    """Return the values of all keys of a configuration."""
    return dict(key_values(msgspec.json.decode(msgspec.json.encode(config))))


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_over_each_shipped_file_has_the_values_of_its_paper(name: str):
    """A value that its paper does not have needs a stated reason, and an extra that it has is named by it."""
    paper = read_paper(name)
    named = dict(key_values(read_tables(recipe_folder(name) / "recipe.toml", "no recipe")))
    assert len(DEPLOYMENTS) > 10
    for file in DEPLOYMENTS:
        config = load(file, recipe=[name])
        settings = settings_of(config)
        assert not {*paper.paper, *paper.release, *paper.why} - settings.keys()
        others = {key for key, value in paper.paper.items() if settings[key] != value}
        assert others <= set(paper.why), file
        assert {key: settings[key] for key in WITHOUT} == {key: named.get(key, off) for key, off in WITHOUT.items()}
        assert {row.key for row in compare_settings(config) if row.differs} == others


def test_dart_over_the_demonstration_is_dart():
    config = load(DEMONSTRATION, recipe=["dart"])
    assert (config.trainer.imitate.trajectories, config.curation.dispatch.choice) == (0, "even")
    assert (config.curation.budget.base, config.trainer.kl_beta, config.trainer.aggregate) == (8, 0.1, "sequences")


def test_what_a_file_sets_beside_its_recipe_wins_and_is_said(tmp_path: Path):
    file = tmp_path / "run.toml"
    file.write_text('recipe = "dart"\n[trainer]\nimitate.trajectories = 16\nlearning_rate = 1e-6\n')
    config = load(file, settings=["policy.max_images=5", "policy.max_texts=35"])
    line = describe_differences(config)
    assert (
        line == "recipe dart: 1 setting differs from the paper's: trainer.imitate.trajectories 16 (0: not in the paper)"
    )
    assert load(file, recipe=["dart"]).trainer.imitate.trajectories == 0
    only = settings_of(config)["curation.budget.base"], config.curation.dispatch.choice
    assert only == (8, "even")


def test_a_paper_that_states_no_setting_is_not_said_to_be_followed():
    assert describe_differences(recipe_config("gui-bee")) == "recipe gui-bee: its paper states no setting"


def test_a_run_without_any_installed_recipe_is_not_compared(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(differences, "known_recipes", list)
    assert describe_differences(parse({})).endswith("the recipe dart is not installed")
    assert compare_settings(parse({})) == []


def test_recipes_together_have_the_extras_that_any_of_them_names():
    config = load(DEMONSTRATION, recipe=["dart", "imitate"])
    assert config.curation.pool.enabled and config.trainer.imitate.trajectories == 24
    assert config.curation.dispatch.choice == "even"
    assert {row.recipe for row in compare_settings(config)} == {"dart", "imitate"}


def test_a_recipe_of_the_command_line_replaces_the_file_s_and_its_keys():
    config = load(DEMONSTRATION.with_name("hard.toml"), recipe=["dart"])
    assert config.recipe == ("dart",) and "craft-gui" not in config.recipes


METHODS = re.compile(
    r"mobile-?rl|adagrpo|adapr|ui-?s1|craft-?gui|digirl|gigpo|mobile-?r1|entropulse|computer-?rl|c3po|ring-?lite|ui-tars-2|"
    r"gui-?bee|gui-?actor|eigendata|distill",
    re.IGNORECASE,
)
CORE = [path for name in ("dart_streams/curation", "trainer") for path in sorted((ROOT / name).rglob("*.py"))]


@pytest.mark.parametrize("file", CORE, ids=lambda file: file.stem)
def test_the_core_names_no_method_but_dart(file: Path):
    assert METHODS.findall(file.read_text()) == []


def test_nothing_imports_a_recipe():
    others = [path for name in (*PACKAGES, "benchmarks") for path in (ROOT / name).rglob("*.py")]
    found = {path.parent for path in others if re.search(r"dart_recipes\.\w+", path.read_text())}
    assert found <= {ROOT / "benchmarks/recipes"}, "which has the measurements of recipes"


DOCS = Path(__file__).parents[3] / "docs" / "recipes" / "index.md"
WITHOUT_A_ROW = {"memory", "remember", "load", "demonstrations"}
"""Fields of a recipe's rules that replace no rule of DART's."""


@pytest.mark.parametrize("name", RECIPES)
def test_the_page_lists_the_rules_that_a_recipe_brings(name: str):
    recipes = DOCS.read_text().partition("## Hook points")[0]
    (row,) = [line for line in recipes.splitlines() if line.startswith(f"| `{name}` |")]
    named = re.findall(r"`([a-z_]+)`", row.split("|")[3])
    assert sorted(named) == sorted(brought_rules(name))


def brought_rules(name: str) -> list[str]:
    """Return the names of the rules that a recipe replaces."""
    brought = []
    for part in ("rules", "training", "judging"):
        rules = getattr(rules_module(name, part), "RULES", None)
        for field in () if rules is None else set(rules._fields) - WITHOUT_A_ROW:
            if getattr(rules, field) != type(rules)._field_defaults.get(field):
                brought.append(field)
    return brought
