"""Rules of the trainer: those of several recipes are put together, or refused where only one can apply."""

import pytest

from dart_streams.config import parse
from dart_streams.errors import ConfigError
from tests import events
from tests.installed_packages import install_recipe
from trainer.hooks import StepStart, bind_training

TRAINING = """
import msgspec
from trainer.hooks import TrainingRules

class Count(msgspec.Struct):
    steps: int = 0

def remember(own, batch):
    own.memory.steps += len(batch)

RULES = TrainingRules(
    loss={loss},
    terms=lambda own, inputs: {value} * inputs,
    replay=lambda own, batch, step: [f"{value} after {{own.memory.steps}}"],
    remember=remember,
    memory=Count,
)
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a recipe whose rules return this value."""

    def make(name: str, value: int, loss: str = "None") -> None:
        training = TRAINING.format(value=value, loss=loss)
        install_recipe(tmp_path, monkeypatch, name, {"recipe.toml": "", "training.py": training})

    return make


LOSS = "lambda own, inputs: (inputs, {})"


def test_without_a_recipe_nothing_joins_a_step():
    bound = bind_training(parse({}))
    assert (bound.is_full, bound.cut, bound.loss, bound.terms) == (None, None, None, None)
    assert bound.replay({}, [], StepStart(1, 0)) == bound.supervised_phase({}, StepStart(1, 0)) == []


def test_one_recipes_loss_replaces_the_objective_and_two_are_refused(install):
    install("own_loss", 3, LOSS)
    assert bind_training(parse({"recipe": "own_loss"})).loss(5) == (5, {})
    install("first_loss", 3, LOSS)
    install("second_loss", 4, LOSS)
    with pytest.raises(ConfigError, match="'first_loss' and 'second_loss' both bring the rule loss"):
        bind_training(parse({"recipe": ["first_loss", "second_loss"]}))


def test_each_recipe_has_its_memory_and_what_they_replay_is_joined(install):
    install("three", 3)
    install("four", 4)
    bound, memories = bind_training(parse({"recipe": ["three", "four"]})), {}
    bound.remember(memories, [events.curated_group("g")])
    assert bound.replay(memories, [], StepStart(2, 0)) == ["3 after 1", "4 after 1"]
    assert bound.terms(10) == 70
