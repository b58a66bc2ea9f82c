"""Hook points of the trainer: what a recipe may replace or add, with each one's signature.

A recipe's module ``training`` has ``RULES``, a :class:`TrainingRules` of its functions. Each but ``score`` is pure. The
first argument, :class:`dart_streams.curation.hooks.Own`, has the settings of the recipe and its memory. The memory is
in each checkpoint, is equal on all ranks, and changes in ``remember`` only. Without a rule DART's own behavior applies,
which each field names. :func:`bind_training` puts the rules of a run together.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from dart_streams.config import Config, Trainer
from dart_streams.config.recipes import rules_module, settings_type
from dart_streams.curation.hooks import Forgetful, Own
from dart_streams.curation.recipes import call_checked, remember_all
from dart_streams.errors import ConfigError
from topics.curated import CuratedGroup, Member

if TYPE_CHECKING:  # torch
    from torch import Tensor

    from trainer.data.collate import MicroBatch
    from trainer.data.samples import ReadyGroup
    from trainer.objective import Metrics


class StepStart(NamedTuple):
    """An optimizer step before its batch; ``seed`` is the run's."""

    train_step: int
    seed: int


class LossInputs(NamedTuple):
    """Tensors of one micro-batch: B sequences, A answer tokens. ``new_logp_BA`` and ``entropy_BA`` have gradients.

    ``old_logp_BA`` are the trainer's at the start of the step, ``rollout_logp_BA`` the engine's (the old ones where
    those do not count). ``weight_BA`` are the importance weights. A sum over ``mask_BA`` is divided by ``total``, the
    update's count of tokens or sequences over all ranks.
    """

    new_logp_BA: "Tensor"
    old_logp_BA: "Tensor"
    rollout_logp_BA: "Tensor"
    entropy_BA: "Tensor"
    weight_BA: "Tensor"
    mask_BA: "Tensor"
    batch: "MicroBatch"
    total: float
    settings: Trainer


class Chain(NamedTuple):
    """A trajectory's trained answer tokens, in order of its steps.

    ``values`` are the critic's, of the state before each token. ``reward`` follows the last token: it is the curated
    advantage of that step, where a recipe with a critic puts the reward.
    """

    values: list[float]
    reward: float


class Credit(NamedTuple):
    """The advantage of each token of a chain, and the target of its value."""

    advantages: list[float]
    targets: list[float]


class Critic(NamedTuple):
    """A value head on the policy's last hidden states: how it learns, and what its values are for.

    Each step makes ``updates`` of AdamW on all tokens of the batch, on the mean squared error. Their rate is
    ``learning_rate`` over the states' width, so that one value fits models of any width. The first
    ``pretraining_steps`` optimizer steps train the head alone.
    """

    credit: Callable[[Chain], Credit]
    learning_rate: float
    updates: int
    pretraining_steps: int


class TrainingRules(NamedTuple):
    """The rules that a recipe brings, and in a bound form all rules of a run.

    Two recipes of one run can't bring the same rule. The exceptions are ``replay``, ``supervised_phase`` and ``terms``,
    whose results are put together.
    """

    is_full: Callable[..., bool] | None = None
    """(tokens): whether a batch with ``tokens`` answer tokens (a float) over all ranks is full. With this rule a step
    takes at most as many groups as dispatch opens ahead. By default it takes ``trainer.groups_per_step`` groups."""
    cut: "Callable[..., list[ReadyGroup]] | None" = None
    """(groups, tokens): what this rank trains of a full batch with ``tokens`` over all ranks; by default all."""
    replay: Callable[[Any, Sequence[CuratedGroup], StepStart], list[Member]] | None = None
    """(batch, step): trajectories of earlier batches that join this one, from the memory, with their advantages. They
    count as no group of the step, and no staleness bound applies. Importance weights do. By default none."""
    supervised_phase: Callable[[Any, StepStart], list[CuratedGroup]] | None = None
    """(step): groups whose likelihood the step raises after its other updates, one update each, from the memory."""
    loss: "Callable[..., tuple[Tensor, Metrics]] | None" = None
    """(inputs): the policy loss of a micro-batch, and ``clip_fraction`` and ``ratio`` as sums over ``total``. By
    default ``trainer.objective``."""
    terms: "Callable[..., Tensor] | None" = None
    """(inputs): an additional term of the loss, as a sum over ``total``. By default none."""
    critic: Callable[..., Critic] | None = None
    """(): the value head, whose credit gives each token its advantage. By default none: all tokens of a step have its
    curated advantage."""
    score: Callable[..., list[list[float] | None]] | None = None
    """(request): numbers for the tokens of each sample's answer, from outside the trainer; None for a sample without.
    The request is a :class:`~trainer.data.scores.ScoreRequest`. Other rules find the numbers in ``batch.scores_BA``.
    The rule is called while a group is read. It alone may do I/O and wait, until ``request.stopped()``. What it returns
    is recorded with the step."""
    remember: Callable[[Any, Sequence[CuratedGroup]], None] | None = None
    """(batch): changes the memory after an optimizer step on this batch."""
    memory: type[msgspec.Struct] = Forgetful
    """The type of the memory; it begins with its defaults."""


DART = TrainingRules()
"""No recipe: DART's own behavior."""
FORGETFUL = ("is_full", "cut", "loss", "terms", "critic", "score")
"""Rules without a memory: their bound form takes no memories."""
JOINED = ("replay", "supervised_phase")
"""Rules whose lists are put together."""


def bind_training(config: Config) -> TrainingRules:
    """Return the rules of a run, bound to their settings.

    Those with a memory take the run's memories, by recipe, in place of ``Own``. Raises ConfigError if two recipes bring
    one rule, or for a rule that does not fit the run.
    """
    found = {name: recipe_rules(name) for name in config.recipe}
    bound: dict[str, Any] = {}
    for hook in (name for name in TrainingRules._fields if name != "memory"):
        having = [name for name, rules in found.items() if getattr(rules, hook) is not None]
        rules = [bind_rule(name, hook, found[name], config) for name in having]
        if hook == "remember":
            bound[hook] = partial(remember_all, rules)
        elif hook in JOINED:
            bound[hook] = partial(join_lists, rules)
        elif hook == "terms":
            bound[hook] = partial(sum_terms, rules) if rules else None
        elif len(rules) > 1:
            raise ConfigError(f"recipe: {having[0]!r} and {having[1]!r} both bring the rule {hook}: choose one")
        else:
            bound[hook] = rules[0] if rules else None
    if bound["is_full"] and config.curation.dispatch.mode == "coupled":
        raise ConfigError(
            "curation.dispatch.mode: coupled dispatch orders trainer.groups_per_step groups a step, and a recipe may "
            'want more of them: set it to "rollout-wise"'
        )
    return TrainingRules(**bound)


def is_pretraining(rules: TrainingRules, step: StepStart) -> bool:
    """Return whether a step trains the critic of bound ``rules`` alone."""
    return rules.critic is not None and step.train_step <= rules.critic().pretraining_steps


def recipe_rules(name: str) -> TrainingRules:
    """Return a recipe's rules of the trainer; none if it has none."""
    rules: TrainingRules = getattr(rules_module(name, "training"), "RULES", TrainingRules())
    return rules


def bind_rule(name: str, hook: str, rules: TrainingRules, config: Config) -> Callable[..., Any]:
    """Return a recipe's rule, bound to its settings."""
    settings = msgspec.convert(config.recipes.get(name, {}), settings_type(name))
    bound = partial(call_checked, hook, getattr(rules, hook), Own(settings, None), name)
    return partial(bound, Forgetful, {}) if hook in FORGETFUL else partial(bound, rules.memory)


def join_lists(rules: Sequence[Callable[..., list[Any]]], memories: dict[str, Any], *arguments: Any) -> list[Any]:
    """Return what all rules return, in the order of the recipes."""
    return [item for rule in rules for item in rule(memories, *arguments)]


def sum_terms(rules: Sequence[Callable[..., Any]], inputs: LossInputs) -> Any:
    """Return the sum of all terms."""
    return sum(rule(inputs) for rule in rules)
