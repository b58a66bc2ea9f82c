"""The contract: the events of each topic, one module per topic, and the legal transitions between states.

Imports only msgspec, so that any program can depend on it. Other programs read these events. A change bumps the topic's
``version`` and keeps a golden file of the old bytes in tests/unit/golden with a decoder.
"""

from topics import (
    action_requests,
    actions,
    curated,
    curation_log,
    feedback,
    observations,
    rollout_budgets,
    rollout_orders,
    task_difficulty,
    task_verdicts,
    tasks,
    trained,
    trajectories,
    weights,
    weights_serving,
)
from topics.topic import Topic

ALL: tuple[Topic, ...] = (
    rollout_orders.TOPIC,
    observations.TOPIC,
    action_requests.TOPIC,
    actions.TOPIC,
    trajectories.TOPIC,
    task_difficulty.TOPIC,
    rollout_budgets.TOPIC,
    curated.TOPIC,
    weights.TOPIC,
    weights_serving.TOPIC,
    trained.TOPIC,
    curation_log.TOPIC,
    tasks.TOPIC,
    task_verdicts.TOPIC,
    feedback.TOPIC,
)
BY_NAME: dict[str, Topic] = {topic.name: topic for topic in ALL}
