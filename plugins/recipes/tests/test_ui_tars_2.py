"""UI-TARS-2: GAE and shaped rewards by hand, and what is curated for the critic."""

import itertools

import msgspec
import pytest

from dart_recipes.ui_tars_2.rules import Settings
from dart_recipes.ui_tars_2.training import credit_tokens, estimate_advantages, policy_lambda
from dart_streams.config.trainer import Imitate
from dart_streams.curation.members import Finish, PooledSuccess
from dart_streams.curation.recipes import bind_rules
from dart_streams.errors import ConfigError
from plugins.recipes.tests.agents import groups_in, played, recipe_config
from topics.trajectories import StepAction
from trainer.data.successes import RememberedSuccess, SuccessMemory
from trainer.hooks import Chain, StepStart, bind_training, is_pretraining
from trainer.learning.imitation import plan_imitation

CLICK, NONE = StepAction(name="click", x=1, y=1), StepAction(name="")


def test_the_lambda_of_400_tokens_is_that_of_the_paper():
    assert policy_lambda(0.05, 400) == pytest.approx(0.95)
    assert policy_lambda(0.05, 40) == pytest.approx(0.5)
    assert policy_lambda(0.05, 20) == policy_lambda(0.05, 3) == 0.0
    weights = itertools.accumulate(range(10_000), lambda weight, _: weight * 0.95, initial=1.0)
    assert sum(weights) == pytest.approx(0.05 * 400), "what alpha is: the errors' weights sum to alpha l"


def test_advantages_of_a_chain_are_those_by_hand():
    """The errors are 0.25 - 0.5, 0.75 - 0.25 and 1 - 0.75."""
    values = [0.5, 0.25, 0.75]
    assert estimate_advantages(values, 1.0, 0.5) == [-0.25 + 0.25 + 0.0625, 0.5 + 0.125, 0.25]
    assert estimate_advantages(values, 1.0, 0.0) == [-0.25, 0.5, 0.25]
    assert estimate_advantages(values, 1.0, 1.0) == [0.5, 0.75, 0.25]


def test_critic_and_policy_have_their_own_lambda():
    """40 tokens have the policy's lambda 0.5; with the critic's lambda of 1 the target of each is the reward."""
    chain = Chain([0.25] * 40, 1.0)
    credit = credit_tokens(Settings(alpha=0.05), chain)
    assert credit.targets == [1.0] * 40
    assert credit.advantages == pytest.approx([0.75 * 0.5**following for following in range(39, -1, -1)])
    early = credit_tokens(Settings(alpha=0.05, critic_lambda=0.0), chain)
    assert early.targets == [0.25] * 39 + [1.0] and early.advantages == credit.advantages


def test_the_first_steps_train_the_critic_alone():
    config = recipe_config("ui-tars-2", recipes={"ui-tars-2": {"value_pretraining_steps": 2}})
    rules = bind_training(config)
    starts = [StepStart(step, 0) for step in (1, 2, 3)]
    assert [is_pretraining(rules, start) for start in starts] == [True, True, False]
    assert not is_pretraining(bind_training(recipe_config()), starts[0])
    memory = SuccessMemory(history=(RememberedSuccess(trajectory_id="a", task_id="t", selected=[0]),))
    imitating = msgspec.structs.replace(config.trainer, imitate=Imitate(trajectories=1))
    plans = [plan_imitation(memory, imitating, rules, {}, start) for start in starts]
    assert [len(plan.beside) for plan in plans] == [0, 0, 1], "nothing is imitated meanwhile"


def finish(reward: float, actions: list[StepAction]) -> Finish:
    return Finish(0, "t", reward, len(actions), [], 0, 0, actions=actions)


def test_rewards_lose_the_penalties_of_format_and_length():
    config = recipe_config("ui-tars-2")
    rules = bind_rules(config)
    members = [finish(1.0, [CLICK, CLICK]), finish(1.0, [CLICK, NONE, NONE, NONE]), finish(0.0, [NONE])]
    shaped = rules.shape_rewards({}, members, [1.0, 1.0, 0.0])
    assert shaped == pytest.approx([1 - 0.01, 1 - 0.075 - 0.02, -0.1 - 0.005])
    old, recorded = Finish(0, "t", 1.0, 4, [], 0, 0), PooledSuccess("p", "o", 1.0, 2)
    assert rules.shape_rewards({}, [old, recorded], [1.0, 1.0]) == pytest.approx([0.98, 0.99]), "without actions"


def test_steps_that_a_recording_took_cost_no_format():
    rules = bind_rules(recipe_config("ui-tars-2"))
    guided = msgspec.structs.replace(finish(1.0, [NONE, CLICK]), recorded=[0])
    assert rules.shape_rewards({}, [guided], [1.0]) == pytest.approx([0.99])


def test_shaped_rewards_are_curated_with_all_steps_and_equal_groups_too():
    config = recipe_config("ui-tars-2", recipes={"ui-tars-2": {"length_penalty": 0.0, "format_penalty": 0.0}})
    groups = groups_in(played(config))
    members = [member for group in groups for member in group.members]
    assert all(member.advantage == member.reward for member in members)
    assert any(len({member.reward for member in group.members}) == 1 for group in groups)
    assert all(member.selected == list(range(len(member.selected))) for member in members)
    penalized = groups_in(played(recipe_config("ui-tars-2")))[0].members[0]
    assert penalized.advantage == pytest.approx(penalized.reward - 0.005 * len(penalized.selected))


def test_alpha_above_zero_is_required():
    with pytest.raises(ConfigError, match="alpha"):
        bind_rules(recipe_config("ui-tars-2", recipes={"ui-tars-2": {"alpha": 0}}))
