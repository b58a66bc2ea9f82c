"""The agents of a deployment: each reducer bound to its topics and settings."""

from collections.abc import Iterator
from functools import partial

import topics
from dart_streams.config import Config
from dart_streams.config.tasks import TaskSet
from dart_streams.curation import budget, difficulty, dispatch, feedback, groups, proposals
from dart_streams.curation.hooks import Rules
from dart_streams.curation.order_tracker import Limits
from dart_streams.curation.recipes import bind_rules
from dart_streams.curation.reducer import Agent


def bind_agents(config: Config, task_set: TaskSet) -> tuple[Agent, ...]:
    """Return difficulty, budget, groups and dispatch, bound to a configuration and task set.

    Only the coupled mode waits for rollout workers, so only there dispatch reads their heartbeats. A run that takes
    proposed tasks has the proposals agent before dispatch, which reads its verdicts. One that trains on
    feedback has the feedback agent there.
    """
    curation, limits, rules = config.curation, Limits.of(config), bind_rules(config)
    further: tuple[topics.Topic, ...] = (topics.weights_serving.TOPIC,) if curation.dispatch.mode == "coupled" else ()
    if config.tasks.proposals:
        further = (*further, topics.task_verdicts.TOPIC)
    return (
        Agent(
            name=difficulty.NAME,
            inputs=(topics.trajectories.TOPIC,),
            outputs=(topics.task_difficulty.TOPIC, topics.rollout_orders.TOPIC),
            state=difficulty.DifficultyState,
            apply=partial(difficulty.apply, window=difficulty.WINDOW, limits=limits, rules=rules),
        ),
        Agent(
            name=budget.NAME,
            inputs=(topics.task_difficulty.TOPIC,),
            outputs=(topics.rollout_budgets.TOPIC,),
            state=budget.BudgetState,
            apply=partial(budget.apply, tasks=task_set, rules=rules),
        ),
        Agent(
            name=groups.NAME,
            inputs=(topics.trajectories.TOPIC,),
            outputs=(topics.curated.TOPIC,),
            state=groups.GroupsState,
            apply=partial(
                groups.apply,
                settings=curation,
                limits=limits,
                rules=rules,
                credits_taken_over=config.feedback.credit_taken_over,
            ),
        ),
        *optional_agents(config, task_set, rules),
        Agent(
            name=dispatch.NAME,
            inputs=(topics.rollout_budgets.TOPIC, topics.curated.TOPIC, topics.weights.TOPIC, *further),
            outputs=(topics.rollout_orders.TOPIC,),
            state=dispatch.DispatchState,
            apply=partial(dispatch.apply, settings=dispatch.DispatchSettings.of(config, task_set), rules=rules),
            note_made_anew=dispatch.forget_unread,
        ),
    )


def optional_agents(config: Config, task_set: TaskSet, rules: Rules) -> Iterator[Agent]:
    """Yield the agents of proposed tasks and of feedback, where the configuration has them."""
    if config.tasks.proposals:
        yield Agent(
            name=proposals.NAME,
            inputs=(topics.tasks.TOPIC, topics.trajectories.TOPIC),
            outputs=(topics.task_verdicts.TOPIC, topics.rollout_orders.TOPIC),
            state=proposals.ProposalsState,
            apply=partial(proposals.apply, settings=proposals.ProposalSettings.of(config, task_set)),
        )
    if config.feedback.enabled:
        yield Agent(
            name=feedback.NAME,
            inputs=(topics.feedback.TOPIC, topics.trajectories.TOPIC),
            outputs=(topics.curated.TOPIC,),
            state=feedback.FeedbackState,
            apply=partial(feedback.apply, settings=feedback.FeedbackSettings.of(config), rules=rules),
        )
