"""The critic of UI-TARS-2 (arXiv 2509.02544): decoupled and length-adaptive GAE, and value pretraining.

The formulas are those of VAPO (arXiv 2504.05118), which the paper follows.
"""

from collections.abc import Sequence
from functools import partial

from dart_recipes.ui_tars_2.rules import Settings
from dart_streams.curation.hooks import Own
from trainer.hooks import Chain, Credit, Critic, TrainingRules


def policy_lambda(alpha: float, tokens: int) -> float:
    """Return the lambda at which the weights of GAE's errors sum to ``alpha`` times the tokens; at least 0."""
    return max(0.0, 1.0 - 1.0 / (alpha * tokens))


def estimate_advantages(values: Sequence[float], reward: float, decay: float) -> list[float]:
    """Return generalized advantage estimates, without discount, of a chain whose reward is at its end.

    ``decay`` is lambda. Source: arXiv 1506.02438, equation 16.
    """
    advantages: list[float] = []
    advantage, following = 0.0, reward
    for value in reversed(values):
        advantage = following - value + decay * advantage
        advantages.append(advantage)
        following = value
    return advantages[::-1]


def credit_tokens(settings: Settings, chain: Chain) -> Credit:
    """Return a trajectory's advantages with the policy's lambda, and value targets with the critic's."""
    values, reward = chain
    targets = [
        value + advantage
        for value, advantage in zip(values, estimate_advantages(values, reward, settings.critic_lambda), strict=True)
    ]
    return Credit(estimate_advantages(values, reward, policy_lambda(settings.alpha, len(values))), targets)


def value_head(own: Own) -> Critic:
    """Return the critic of a run."""
    settings: Settings = own.settings
    return Critic(
        credit=partial(credit_tokens, settings),
        learning_rate=settings.value_learning_rate,
        updates=settings.value_updates,
        pretraining_steps=settings.value_pretraining_steps,
    )


RULES = TrainingRules(critic=value_head)
