"""The four agents of a deployment: each reducer bound to its topics and settings."""

from functools import partial

from dart_streams.config import Config
from dart_streams.config.tasks import TaskSet
from dart_streams.curation import budget, difficulty, dispatch, groups
from dart_streams.curation.order_tracker import Limits
from dart_streams.curation.recipes import bind_rules
from dart_streams.curation.reducer import Agent
from topics import curated, rollout_budgets, rollout_orders, task_difficulty, trajectories, weights, weights_serving


def bind_agents(config: Config, tasks: TaskSet) -> tuple[Agent, ...]:
    """Return difficulty, budget, groups and dispatch, bound to a configuration and task set.

    Only the coupled mode waits for rollout workers, so only there dispatch reads their heartbeats.
    """
    curation, limits, rules = config.curation, Limits.of(config), bind_rules(config)
    serving = (weights_serving.TOPIC,) if curation.dispatch.mode == "coupled" else ()
    return (
        Agent(
            name=difficulty.NAME,
            inputs=(trajectories.TOPIC,),
            outputs=(task_difficulty.TOPIC, rollout_orders.TOPIC),
            state=difficulty.DifficultyState,
            apply=partial(difficulty.apply, window=difficulty.WINDOW, limits=limits, rules=rules),
        ),
        Agent(
            name=budget.NAME,
            inputs=(task_difficulty.TOPIC,),
            outputs=(rollout_budgets.TOPIC,),
            state=budget.BudgetState,
            apply=partial(budget.apply, tasks=tasks, rules=rules),
        ),
        Agent(
            name=groups.NAME,
            inputs=(trajectories.TOPIC,),
            outputs=(curated.TOPIC,),
            state=groups.GroupsState,
            apply=partial(groups.apply, settings=curation, limits=limits, rules=rules),
        ),
        Agent(
            name=dispatch.NAME,
            inputs=(rollout_budgets.TOPIC, curated.TOPIC, weights.TOPIC, *serving),
            outputs=(rollout_orders.TOPIC,),
            state=dispatch.DispatchState,
            apply=partial(dispatch.apply, settings=dispatch.DispatchSettings.of(config, tasks), rules=rules),
            note_made_anew=dispatch.forget_unread,
        ),
    )
