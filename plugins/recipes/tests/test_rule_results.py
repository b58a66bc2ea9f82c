"""A recipe whose rules fail, or return what no reader can use, is named with its rule."""

from typing import Any

import pytest

from dart_streams.config import parse
from dart_streams.curation.hooks import Turn
from dart_streams.curation.members import Finish
from dart_streams.curation.recipes import bind_rules
from dart_streams.curation.rule_results import RuleFailed
from dart_streams.curation.task_scheduler import TaskState
from tests.installed_packages import install_recipe

NAN = float("nan")
TWO = [Finish(index, f"t{index}", reward, 2, [], 0, 0) for index, reward in enumerate((0.0, 1.0))]
REWARDS = [0.0, 1.0]
GROUP = (TWO, REWARDS)
WRONG: list[tuple[str, str, tuple[Any, ...], str]] = [
    ("success_rate", "2.0", (REWARDS,), "from 0 to 1"),
    ("success_rate", "float('nan')", (REWARDS,), "from 0 to 1"),
    ("rollouts", "(0, 'none')", (None,), "1 to"),
    ("rollouts", "4", (None,), "a reason"),
    ("step_limit", "(31, 'long')", (None, 30), "1 to 30"),
    ("eligible_tasks", "('b',)", (0, {}, ("a",)), "given tasks"),
    ("task_weight", "float('nan')", (Turn("a", TaskState(), 0),), "from 0 to 1"),
    ("reward", "-1.0", (None,), "from 0 to 1"),
    ("shape_rewards", "[1.0]", GROUP, "2 finite numbers"),
    ("advantages", "[float('inf'), 0.0]", GROUP, "2 finite numbers"),
    ("step_advantages", "[[1.0], []]", (*GROUP, REWARDS), "for each step"),
    ("select_steps", "[[0, 2], [0]]", (TWO,), "a rollout's steps"),
    ("select_steps", "[[1, 0], [0]]", (TWO,), "in order"),
    ("keep_group", "1 / 0", GROUP, "ZeroDivisionError"),
    ("order", "None.sample", (None,), "AttributeError"),
]


@pytest.mark.parametrize(("hook", "result", "arguments", "reason"), WRONG, ids=[f"{w[0]}: {w[1]}" for w in WRONG])
def test_a_wrong_result_is_refused_with_recipe_and_rule(hook, result, arguments, reason, tmp_path, monkeypatch):
    rules = f"from dart_streams.curation.hooks import Rules\nRULES = Rules({hook}=lambda *_: {result})\n"
    name = f"wrong_{abs(hash((hook, result)))}"
    install_recipe(tmp_path, monkeypatch, name, {"recipe.toml": "", "rules.py": rules})
    bound = bind_rules(parse({"recipe": name}))
    with pytest.raises(RuleFailed, match=f"recipe '{name}': its rule {hook} ended with .*{reason}"):
        getattr(bound, hook)({}, *arguments)
