"""Folds the activity of topics, and finds silent ones with their writers and probable causes. Pure."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from console.runs.run_log import ObservationHeader, RecordMetadata, ResponseHeader
from topics.curated import CuratedGroup
from topics.curation_log import Applied
from topics.feedback import Feedback
from topics.rollout_budgets import RolloutBudget
from topics.rollout_orders import RolloutOrder
from topics.task_difficulty import TaskDifficulty
from topics.task_verdicts import TaskVerdict
from topics.trained import TrainedStep
from topics.trajectories import Trajectory
from topics.weights import WeightVersion
from topics.weights_serving import WeightsServing

SENDERS: dict[type, Callable[[Any], str]] = {
    RolloutOrder: lambda order: "dispatch" if order.purpose == "train" else order.purpose,
    ObservationHeader: lambda observation: observation.env_host,
    ResponseHeader: lambda response: response.worker_id,
    Trajectory: lambda _: "recorder",
    Feedback: lambda feedback: feedback.author,
    TrainedStep: lambda step: f"trainer epoch {step.epoch}",
    WeightVersion: lambda version: f"trainer epoch {version.epoch}",
    WeightsServing: lambda serving: serving.worker_id,
    **dict.fromkeys((CuratedGroup, TaskDifficulty, TaskVerdict, RolloutBudget, Applied), lambda _: "curator"),
}


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


NO_SENDER = "no sender yet"


class Edge(msgspec.Struct, frozen=True):
    """A topic, its writer, and the writer's inputs."""

    topic: str
    writer: str
    inputs: tuple[str, ...]


EDGES = (
    Edge("rollout-orders", "curator (dispatch)", ("rollout-budgets", "curated", "weights")),
    Edge("observations", "environment workers", ("rollout-orders", "actions")),
    Edge("action-requests", "environment workers", ("observations",)),
    Edge("actions", "rollout workers", ("action-requests",)),
    Edge("trajectories", "recorder", ("observations",)),
    Edge("task-difficulty", "curator (difficulty)", ("trajectories",)),
    Edge("rollout-budgets", "curator (budget)", ("task-difficulty",)),
    Edge("curated", "curator (groups)", ("trajectories",)),
    Edge("weights", "trainer", ("curated",)),
    Edge("weights-serving", "rollout workers", ("weights",)),
)


class LastArrival(NamedTuple):
    """Arrival of a topic's last record, in seconds of a monotonic clock, and its sender."""

    at_s: float
    sender: str


class Stall(msgspec.Struct, frozen=True, kw_only=True):
    """A silent topic; with a ``waiting`` writer the cause is upstream. ``last_record`` is a place, or empty."""

    topic: str
    silent_s: float
    last_from: str
    last_record: str
    writer: str
    waiting: bool
    newest_input: str


def find_stalls(
    activity: Mapping[str, TopicActivity],
    arrivals: Mapping[str, LastArrival],
    since_s: float,
    now_s: float,
    bound_s: float,
) -> list[Stall]:
    """Return the topics without a record for ``bound_s``, first those whose writers have newer input.

    ``arrivals`` begin at ``since_s`` of the same clock, and silence counts from then on. Records from before are
    ordered by their own times, of several machines' clocks, which only serves as a hint.
    """

    def last(topic: str) -> tuple[float, int]:
        return arrivals[topic].at_s if topic in arrivals else since_s, activity[topic].at_ms

    silent = []
    for edge in EDGES:
        inputs = [(last(name), name) for name in known_inputs(edge, activity)]
        output = activity.get(edge.topic)
        if output is None and not inputs:
            continue
        last_output = last(edge.topic) if output else (since_s, 0)
        silent_s = now_s - last_output[0]
        if silent_s >= bound_s:
            sender = arrivals[edge.topic].sender if edge.topic in arrivals else output.sender if output else NO_SENDER
            newest = max(inputs, default=((since_s, 0), " or ".join(edge.inputs)))
            silent.append(
                Stall(
                    topic=edge.topic,
                    silent_s=round(silent_s, 1),
                    last_from=sender or edge.writer,
                    last_record=output.place if output else "",
                    writer=edge.writer,
                    waiting=newest[0] <= last_output,
                    newest_input=newest[1],
                )
            )
    return sorted(silent, key=lambda stall: (stall.waiting, stall.last_from == NO_SENDER, -stall.silent_s))


def known_inputs(edge: Edge, activity: Mapping[str, TopicActivity]) -> list[str]:
    """Return a writer's inputs that have records.

    An input without records, of a writer that has written, is not read here: its own writer's inputs stand for it.
    """
    unread = {name for name in edge.inputs if name not in activity and edge.topic in activity}
    behind = [name for above in EDGES if above.topic in unread for name in above.inputs]
    return [name for name in (*edge.inputs, *behind) if name in activity]


def describe_stall(stall: Stall) -> str:
    """Return a sentence with a stall's topic, duration, last record and probable cause."""
    last = f", the last record is {stall.last_record} from {stall.last_from}" if stall.last_record else ""
    return f"{stall.topic} silent for {stall.silent_s:.0f} s{last}: {explain_stall(stall)}"


def explain_stall(stall: Stall) -> str:
    """Return the probable cause of a stall."""
    if stall.waiting:
        return f"no newer input for {stall.writer} on {stall.newest_input}"
    if not stall.last_record:
        return f"input on {stall.newest_input}, but nothing from {stall.writer} yet: once started, look at the log"
    return f"newer input on {stall.newest_input} for {stall.writer}: look at the log"
