"""Activity of a run's topics, from which stalls are found."""

from collections.abc import Callable
from typing import Any

import msgspec

from dart_streams.console.runs.run_log import ObservationHeader, RecordMetadata, ResponseHeader
from topics.curated import CuratedGroup
from topics.curation_log import Applied
from topics.rollout_budgets import RolloutBudget
from topics.rollout_orders import RolloutOrder
from topics.task_difficulty import TaskDifficulty
from topics.trained import TrainedStep
from topics.trajectories import Trajectory
from topics.weights import WeightVersion
from topics.weights_serving import WeightsServing

SENDERS: dict[type, Callable[[Any], str]] = {
    RolloutOrder: lambda order: "dispatch" if order.purpose == "train" else order.purpose,
    ObservationHeader: lambda observation: observation.env_host,
    ResponseHeader: lambda response: response.worker_id,
    Trajectory: lambda _: "recorder",
    CuratedGroup: lambda _: "curator",
    TrainedStep: lambda step: f"trainer epoch {step.epoch}",
    WeightVersion: lambda version: f"trainer epoch {version.epoch}",
    WeightsServing: lambda serving: serving.worker_id,
    TaskDifficulty: lambda _: "curator",
    RolloutBudget: lambda _: "curator",
    Applied: lambda _: "curator",
}
"""Sender of each kind of record."""


class TopicActivity(msgspec.Struct, frozen=True):
    """Number of a topic's records, and the time, sender and place of the newest."""

    records: int = 0
    at_ms: int = 0
    sender: str = ""
    place: str = ""


class ActivityState:
    """Activity of each topic, folded from its records into constant size."""

    def __init__(self) -> None:
        self.activity: dict[str, TopicActivity] = {}

    def apply(self, metadata: RecordMetadata, event: Any) -> str:
        """Apply one record, and return its sender, empty if the event is None or of another kind."""
        sender_of = SENDERS.get(type(event))
        sender = sender_of(event) if sender_of else ""
        before = self.activity.get(metadata.topic, TopicActivity())
        if metadata.at_ms >= before.at_ms:
            place = f"{metadata.topic}[{metadata.partition}]@{metadata.offset}"
            activity = TopicActivity(before.records + 1, metadata.at_ms, sender, place)
        else:
            activity = msgspec.structs.replace(before, records=before.records + 1)
        self.activity[metadata.topic] = activity
        return sender
