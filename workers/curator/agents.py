"""The data manager's agents: Faust runs these functions, each over the stream of its topics.

Each also produces ``curation-log``, and ``<input>.dlq`` for records that do not decode or cannot be applied.

Each takes the same five steps (:class:`~workers.curator.durable_agent.DurableAgent`). Faust commits offsets, tables and
published records independently, so a kill leaves them inconsistent:

1. Read, or 2. fold: no effect is visible, and the records are redelivered, perhaps in another order across topics.
3. Journal: the same, unless the broker has the entry. Then it is as in step 4.
4. Publish: the restored state includes the journaled batch. Its decisions, recomputed from the same inputs in the same
   order, are published (again) first. A reader ignores the second of two decisions with the same id.
5. Acknowledge: the redelivered records are recognized by their offsets.

A frozen curator may wake up after another has taken its partitions. Up to step 3 its batch does not count, nothing is
published, and its process ends. In step 4 the batch preceded the claim, so the other curator publishes the same
decisions. In step 5 the group refuses its offsets.

Effects before state would be wrong: dispatch reads three topics, and their order may change after a crash, so that an
ordered group would become another task's.
"""

from typing import Any

from faust import Stream

from workers.curator.durable_agent import DurableAgent


async def difficulty(agent: DurableAgent, trajectories: Stream[Any]) -> None:
    """Compute the success rate of each task, and its longest success, from its last finished rollouts.

    The reducer is :func:`dart_streams.curation.difficulty.apply`; each partition has its own state. It waits for
    finished rollouts from the recorder.
    """
    async for batch in agent.read(trajectories):  # 1. Read what came, of one partition.
        decided = agent.fold(batch)  # 2. Fold it into the state: one difficulty for each finish.
        if await agent.journal(batch, decided):  # 3. Make the state durable in the table, as its only owner.
            await agent.publish(decided)  # 4. Publish the difficulties.
            await agent.acknowledge(batch)  # 5. Let Faust commit the offsets.


async def budget(agent: DurableAgent, difficulties: Stream[Any]) -> None:
    """Compute how many rollouts a task's next group has, and how many steps each: fewer for an easy task.

    The reducer is :func:`dart_streams.curation.budget.apply`, with ``rollouts_for`` and ``length_cap``. It waits for
    the difficulty agent.
    """
    async for batch in agent.read(difficulties):  # 1. Read what came, of one partition.
        decided = agent.fold(batch)  # 2. Fold it into the state: rollouts_for gives each difficulty a budget.
        if await agent.journal(batch, decided):  # 3. Make the state durable in the table, as its only owner.
            await agent.publish(decided)  # 4. Publish the budgets.
            await agent.acknowledge(batch)  # 5. Let Faust commit the offsets.


async def groups(agent: DurableAgent, trajectories: Stream[Any]) -> None:
    """Collect the finished rollouts of each group; once it is whole, compute advantages and select steps to train on.

    The reducer is :func:`dart_streams.curation.groups.apply`. It adds a success of the experience pool to a group
    without any, and drops a group without a learning signal. It waits for a group's last rollout from the recorder.
    """
    async for batch in agent.read(trajectories):  # 1. Read what came, of one partition.
        decided = agent.fold(batch)  # 2. Fold it into the state: one curated group for each that is whole.
        if await agent.journal(batch, decided):  # 3. Make the state durable in the table, as its only owner.
            await agent.publish(decided)  # 4. Publish the curated groups.
            await agent.acknowledge(batch)  # 5. Let Faust commit the offsets.


async def dispatch(agent: DurableAgent, budgets_groups_and_weights: Stream[Any]) -> None:
    """Order rollouts: open groups by their budgets while slots and the staleness bound leave room; order faults again.

    The reducer is :func:`dart_streams.curation.dispatch.apply`. All of its topics share one state, so they have one
    partition each, and their records count in the order of arrival. It waits for the first weights, then for finished
    rollouts, and for room within the staleness bound from the trainer.
    """
    async for batch in agent.read(budgets_groups_and_weights):  # 1. Read what came, of all topics.
        decided = agent.fold(batch)  # 2. Fold it into the state: orders for which there is room.
        if await agent.journal(batch, decided):  # 3. Make the state durable in the table, as its only owner.
            await agent.publish(decided)  # 4. Publish the orders.
            await agent.acknowledge(batch)  # 5. Let Faust commit the offsets.


async def proposals(agent: DurableAgent, tasks_and_trajectories: Stream[Any]) -> None:
    """Order a check of each proposed task, and accept or refuse the task by the outcome, for dispatch.

    The reducer is :func:`dart_streams.curation.proposals.apply`. It runs with ``tasks.proposals``.
    """
    async for batch in agent.read(tasks_and_trajectories):  # 1.
        decided = agent.fold(batch)  # 2.
        if await agent.journal(batch, decided):  # 3.
            await agent.publish(decided)  # 4.
            await agent.acknowledge(batch)  # 5.


async def feedback(agent: DurableAgent, feedback_and_trajectories: Stream[Any]) -> None:
    """Turn what people say of rollouts into groups for the trainer.

    The reducer is :func:`dart_streams.curation.feedback.apply`. It runs with ``feedback.enabled``.
    """
    async for batch in agent.read(feedback_and_trajectories):  # 1.
        decided = agent.fold(batch)  # 2.
        if await agent.journal(batch, decided):  # 3.
            await agent.publish(decided)  # 4.
            await agent.acknowledge(batch)  # 5.


BODIES = {body.__name__: body for body in (difficulty, budget, groups, proposals, feedback, dispatch)}
"""The agents by name."""
