"""The recipe of docs/recipes/your-own.md, installed and played as the page says."""

import re
import tomllib
from pathlib import Path

from dart_streams.config.recipes import ENTRY_POINTS
from dart_streams.curation.hooks import Own, TaskFinish, Turn
from dart_streams.curation.recipes import memory_of
from dart_streams.curation.task_scheduler import TaskState
from plugins.recipes.tests.agents import groups_in, orders_in, played, recipe_config
from tests.installed_packages import install_recipe

PAGE = (Path(__file__).parents[3] / "docs/recipes/your-own.md").read_text()
FILES = dict(re.findall(r"^```\w+\n# (\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))


def test_the_recipe_of_the_page_trains_with_its_rules(tmp_path, monkeypatch):
    project = tomllib.loads(FILES["pyproject.toml"])
    assert project["project"]["entry-points"][ENTRY_POINTS] == {"brief": "brief"}
    files = {place.removeprefix("brief/"): text for place, text in FILES.items() if place.startswith("brief/")}
    install_recipe(tmp_path, monkeypatch, "brief", files)
    circle = played(recipe_config("brief", recipes={"brief": {"cost": 0.1}}))
    assert circle.trainer.version >= 2
    lengths = {written.event.trajectory_id: written.event.steps for written in circle.logs["trajectories"]}
    won = [
        (lengths[a.trajectory_id] - lengths[b.trajectory_id], a.advantage - b.advantage)
        for group in groups_in(circle)
        for a in group.members
        for b in group.members
        if a.reward == b.reward == 1.0 and a.source == b.source == "online"
    ]
    assert all((longer > 0) == (less < 0) for longer, less in won) and any(longer for longer, _ in won)
    assert orders_in(circle)
    from brief import rules

    own = Own(rules.Settings(), memory_of({"brief": {"ended": 3, "solved": {"a": 3}}}, "brief", rules.Solved))
    assert rules.turn_weight(own, Turn("a", TaskState(), 0)) == 0.0
    for group in range(4):
        rules.note_finish(own, TaskFinish("b", group, False, True))
    assert rules.turn_weight(own, Turn("a", TaskState(), 0)) == 1.0


def test_the_recipe_of_the_page_has_less_than_100_lines():
    assert sum(text.count("\n") + 1 for text in FILES.values()) < 100
