"""The data manager in memory: four agents chained by lists, each record applied through ``advance``.

Serves what-if replays, simulations, tests and examples. The caller plays and trains: read ``rollout-orders``, publish
``trajectories``, and pass curated groups to a trainer such as :class:`CountingTrainer`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from dart_streams.config import Config
from dart_streams.config.tasks import TaskSet
from dart_streams.curation.agents import bind_agents
from dart_streams.curation.reducer import Agent, InputRecord, ReducerResult, advance
from topics.curated import CuratedGroup
from topics.weights import WeightVersion

Subscription = tuple[Agent, str]


class Written(NamedTuple):
    """A record of a topic: id and event."""

    id: str
    event: Any


class TopicLog(Sequence[Written]):
    """A topic of one partition, indexed by offset; records before :attr:`begin` are deleted."""

    def __init__(self) -> None:
        self.begin = 0
        self.records: list[Written] = []

    def __len__(self) -> int:
        """Return the offset of the next record."""
        return self.begin + len(self.records)

    def __getitem__(self, offset: Any) -> Any:
        """Return the record at an offset, or a slice of records; raise IndexError for a deleted one."""
        if isinstance(offset, slice):
            return [self[number] for number in range(*offset.indices(len(self)))]
        if not self.begin <= offset < len(self):
            raise IndexError(f"no record at offset {offset}: the log has {self.begin} to {len(self)}")
        return self.records[offset - self.begin]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TopicLog) and (self.begin, self.records) == (other.begin, other.records)

    def delete_before(self, offset: int) -> None:
        """Delete the records below ``offset``."""
        del self.records[: max(0, offset - self.begin)]
        self.begin = max(self.begin, offset)


class InMemoryCircle:
    """Topics, agents with their states, and the position of each reader."""

    def __init__(self, config: Config, tasks: TaskSet) -> None:
        self.config = config
        self.tasks = tasks
        self.agents = {agent.name: agent for agent in bind_agents(config, tasks)}
        self.states: dict[str, Any] = {name: agent.state() for name, agent in self.agents.items()}
        self.subscriptions: list[Subscription] = [
            (agent, topic.name) for agent in self.agents.values() for topic in agent.inputs
        ]
        self.logs: dict[str, TopicLog] = {}
        self.unread = dict.fromkeys(((agent.name, topic) for agent, topic in self.subscriptions), 0)
        self.positions: dict[tuple[str, str], int] = dict(self.unread)

    def publish(self, topic: str, record_id: str, event: Any) -> None:
        """Append an event to a topic."""
        self.logs.setdefault(topic, TopicLog()).records.append(Written(record_id, event))
        for agent in self.agents:
            if (agent, topic) in self.unread:
                self.unread[agent, topic] += 1

    def poll(self, topic: str, reader: str = "") -> list[Any]:
        """Return the events of a topic that ``reader`` has not polled yet."""
        log = self.logs.setdefault(topic, TopicLog())
        position = self.positions.get((reader, topic), 0)
        self.positions[reader, topic] = len(log)
        return [log[offset].event for offset in range(position, len(log))]

    def waiting(self) -> list[Subscription]:
        """Return the (agent, topic) pairs with unread records."""
        return [(agent, topic) for agent, topic in self.subscriptions if self.unread[agent.name, topic]]

    def settle(self) -> None:
        """Let the agents read until no record is left, in a fixed order."""
        while waiting := self.waiting():
            self.advance(*self.choose(waiting))

    def choose(self, waiting: list[Subscription]) -> Subscription:
        """Return the next pair to read; subclasses draw it."""
        return waiting[0]

    def advance(self, agent: Agent, topic: str) -> None:
        """Let an agent apply the next record of a topic."""
        offset = self.positions.get((agent.name, topic), 0)
        self.positions[agent.name, topic] = offset + 1
        self.unread[agent.name, topic] -= 1
        self.deliver(agent, topic, offset)

    def deliver(self, agent: Agent, topic: str, offset: int) -> int:
        """Deliver one record to an agent, possibly again; return the number of decisions."""
        written = self.logs[topic][offset]
        result = self.apply(agent, InputRecord(topic, 0, offset, written.event, written.id))
        self.states[agent.name] = result.state
        for decision in result.decisions:
            self.publish(decision.topic.name, decision.id, decision.event)
        return len(result.decisions)

    def apply(self, agent: Agent, record: InputRecord) -> ReducerResult:
        """Apply a record; subclasses measure or log it."""
        return advance(agent, self.states[agent.name], record)

    def delete_read(self) -> None:
        """Delete the records that every reader has read, as retention does."""
        for topic, log in self.logs.items():
            positions = [position for (_, name), position in self.positions.items() if name == topic]
            log.delete_before(min(positions, default=0))


class CountingTrainer:
    """A stand-in trainer: one weight version per ``groups_per_step`` groups; ``trained`` lists those consumed."""

    def __init__(self, groups_per_step: int) -> None:
        self.groups_per_step = groups_per_step
        self.waiting: list[CuratedGroup] = []
        self.trained: list[CuratedGroup] = []
        self.version = 0

    def take(self, group: CuratedGroup) -> WeightVersion | None:
        """Take a group; return the version of the optimizer step that it completes, if any."""
        if group.feedback:  # It takes no place in a batch.
            return None
        self.waiting.append(group)
        if len(self.waiting) < self.groups_per_step:
            return None
        self.trained += self.waiting[: self.groups_per_step]
        del self.waiting[: self.groups_per_step]
        self.version += 1
        return self.weights()

    def weights(self) -> WeightVersion:
        """Return the newest version's announcement."""
        return WeightVersion(
            model_id="simulated",
            version=self.version,
            uri="memory://",
            sha256="",
            train_step=self.version,
            epoch=1,
            groups_consumed=self.version * self.groups_per_step,
        )
