"""The tiny policy is named after what determines it."""

from pathlib import Path

import msgspec
import pytest

from dart_streams.config import Config, Env, Miniwob, Policy, Run, Tasks, Warmup
from dart_streams.config.tasks import Page, Task, TaskSet, load
from dart_streams.errors import UserError
from dart_streams.policy import recipe

PAGE = Page(
    environment="miniwob",
    page="click-test",
    max_steps=2,
    train_seeds=(0, 2),
    heldout_seeds=(10, 12),
    demonstration_seeds=(20, 30),
)
TASKS = TaskSet([PAGE])


def test_the_policy_is_named_after_settings_tasks_and_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config()
    name = recipe.tiny_policy_digest(config, TASKS)
    assert recipe.tiny_policy_folder(config, TASKS) == Path(".dart/policies") / name
    assert recipe.tiny_policy_digest(msgspec.structs.replace(config, warmup=Warmup(steps=1)), TASKS) != name
    assert (
        recipe.tiny_policy_digest(config, TaskSet([msgspec.structs.replace(PAGE, demonstration_seeds=(20, 31))]))
        != name
    )
    assert recipe.tiny_policy_digest(config, TaskSet([msgspec.structs.replace(PAGE, train_seeds=(0, 9))])) == name
    changed = tmp_path / "prompts.py"
    changed.write_text("another prompt")
    monkeypatch.setattr(recipe, "SOURCES", (changed,))
    assert recipe.tiny_policy_digest(config, TASKS) != name


def test_a_task_shows_its_split() -> None:
    assert [task.split for task in PAGE.tasks("demonstration")] == ["demonstration"] * 10
    assert isinstance(TASKS.get("miniwob/click-test#20"), Task)


def test_the_model_is_the_configured_or_the_built_tiny_one(tmp_path: Path) -> None:
    tasks_file = str(Path(__file__).parents[3] / "deploy/config/tasks.toml")
    config = msgspec.structs.replace(Config(), run=Run(state_dir=str(tmp_path)), tasks=Tasks(file=tasks_file))
    with pytest.raises(UserError, match="dart-streams policy build"):
        recipe.model_folder(config)
    built = recipe.tiny_policy_folder(config, load(Path(tasks_file)))
    built.mkdir(parents=True)
    assert recipe.model_folder(config) == built
    own = msgspec.structs.replace(config, policy=Policy(path=str(tmp_path)))
    (tmp_path / "config.json").write_text("{}")
    assert recipe.model_folder(own) == tmp_path


def test_the_tiny_policy_of_other_pages_is_another(tmp_path):
    page = tmp_path / f"{PAGE.page}.html"
    page.write_text("one")
    config = Config(env=Env(miniwob=Miniwob(pages_folder=str(tmp_path))))
    before = recipe.tiny_policy_digest(config, TASKS)
    (tmp_path / "unused.html").write_text("none")
    assert recipe.tiny_policy_digest(config, TASKS) == before
    page.write_text("two")
    assert recipe.tiny_policy_digest(config, TASKS) != before
