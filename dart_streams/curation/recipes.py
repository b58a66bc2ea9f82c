"""DART's rules, and the rules of a run: DART's with those that its recipes replace."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import msgspec

from dart_streams.config import Config
from dart_streams.config.recipes import rules_module, settings_type
from dart_streams.curation import advantages, budget, difficulty, dispatch, groups, task_scheduler
from dart_streams.curation.hooks import PASSED_ON, Forgetful, Memories, Own, Rules
from dart_streams.curation.reducer import InvalidEvent
from dart_streams.curation.rule_results import CHECKS, RuleFailed
from dart_streams.errors import ConfigError, UserError

DART = Rules(
    success_rate=difficulty.success_rate,
    rollouts=budget.rollouts_of,
    step_limit=budget.steps_of,
    eligible_tasks=lambda own, group, limits, task_ids: task_ids,
    task_weight=task_scheduler.turn_weight,
    admits=dispatch.has_room,
    order=lambda own, order: order,
    further_orders=lambda own, trajectory: [],
    start_states=lambda own, trajectory: [],
    reward=lambda own, trajectory: advantages.checked_reward(trajectory),
    shape_rewards=lambda own, members, rewards: list(rewards),
    keep_group=groups.has_signal,
    advantages=lambda own, members, rewards: advantages.step_level_advantages(
        rewards, [len(one.own) for one in members]
    ),
    step_advantages=lambda own, members, rewards, of_trajectories: [[] for _ in members],
    select_steps=groups.selected_steps,
    pooled=lambda own, trajectory, success: success,
    remember=lambda own, event: None,
)
"""DART's rules (arXiv 2509.23866); their settings are :class:`dart_streams.config.Curation`."""
HOOKS = tuple(name for name in Rules._fields if name not in ("memory", "load", "demonstrations"))


def recipe_rules(name: str) -> Rules:
    """Return the rules of a recipe; none if it has only settings."""
    rules: Rules = getattr(rules_module(name), "RULES", Rules())
    return rules


def wants_demonstrations(config: Config) -> bool:
    """Return whether a run orders a demonstration of each training task: for the pool, or for a recipe."""
    needed = config.curation.pool.enabled or any(recipe_rules(name).demonstrations for name in config.recipe)
    return config.run.demonstrate and needed


def bind_rules(config: Config, *, load: bool = True) -> Rules:
    """Return the rules of a run, bound to their settings: each takes the agent's :data:`Memories` in place of ``Own``.

    The recipes' files are read now, or without ``load`` when a rule first needs them. Raises ConfigError if two recipes
    replace one rule, or if a file can't be read.
    """
    recipes = {name: recipe_rules(name) for name in config.recipe}
    own = {name: bind_recipe(name, rules, config, load) for name, rules in recipes.items()}
    dart = {hook: partial(call_bound, getattr(DART, hook), Own(config.curation, None)) for hook in HOOKS}
    bound: dict[str, Any] = {}
    for hook in HOOKS:
        having = [name for name in own if hook in own[name]]
        if hook == "remember":
            bound[hook] = partial(remember_all, [own[name][hook] for name in having])
        elif hook in PASSED_ON:
            bound[hook] = partial(pass_on, [own[name][hook] for name in having]) if having else dart[hook]
        elif len(having) > 1:
            raise ConfigError(f"recipe: {having[0]!r} and {having[1]!r} both replace the rule {hook}: choose one")
        else:
            bound[hook] = own[having[0]][hook] if having else dart[hook]
    return Rules(**bound)


def bind_recipe(name: str, rules: Rules, config: Config, load: bool) -> dict[str, Callable[..., Any]]:
    """Return a recipe's own rules by hook, bound to its settings."""
    settings = msgspec.convert(config.recipes.get(name, {}), settings_type(name))
    own = Own(settings, None)
    if rules.load is not None:
        own = own._replace(load=cache(partial(rules.load, settings)))
    if load:
        own.load()
    return {
        hook: partial(call_checked, hook, rule, own, name, rules.memory)
        for hook in HOOKS
        if (rule := getattr(rules, hook)) is not None
    }


def call_bound(rule: Callable[..., Any], own: Own, memories: Memories, *arguments: Any) -> Any:
    """Call a rule without memory."""
    return rule(own, *arguments)


def call_checked(
    hook: str,
    rule: Callable[..., Any],
    own: Own,
    name: str,
    kind: type[msgspec.Struct],
    memories: Memories,
    *arguments: Any,
) -> Any:
    """Call a recipe's rule with what it remembers; raise RuleFailed for its errors and for a result that is none."""
    if kind is not Forgetful:
        own = own._replace(memory=memory_of(memories, name, kind))
    try:
        result = rule(own, *arguments)
        if check := CHECKS.get(hook):
            check(result, *arguments)
    except (InvalidEvent, UserError):
        raise
    except Exception as error:
        raise RuleFailed(
            f"recipe {name!r}: its rule {hook} ended with {type(error).__name__}: {error}. Mend the rule and resume "
            "the run, which continues at the same record"
        ) from error
    return result


def memory_of(memories: Memories, name: str, kind: type[msgspec.Struct]) -> Any:
    """Return a recipe's memory, as its type: a restored state has it as plain values."""
    memory = memories.get(name)
    if not isinstance(memory, kind):
        memory = memories[name] = msgspec.convert(memory or {}, kind)
    return memory


def remember_all(rules: list[Callable[..., Any]], memories: Memories, event: Any) -> None:
    """Let each recipe remember an event."""
    for rule in rules:
        rule(memories, event)


def pass_on(rules: list[Callable[..., Any]], memories: Memories, *arguments: Any) -> Any:
    """Return the last argument, changed by each rule in turn."""
    *context, value = arguments
    for rule in rules:
        value = rule(memories, *context, value)
    return value
