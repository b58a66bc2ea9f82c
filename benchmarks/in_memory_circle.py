"""The circle in memory: the four reducers chained by lists, a world that plays the orders, and a trainer.

What happens next (which rollout ends, which agent reads) is for the caller to say, or drawn from a seeded generator, so
a property test can try any interleaving and a failure can be repeated.
"""

import random
from typing import Any, NamedTuple

import msgspec

from benchmarks.curation_world import CountingTrainer, Odds, play
from dart_streams.config import Config
from dart_streams.curation.agents import agents
from dart_streams.curation.reducer import Agent, InputRecord, advance
from dart_streams.tasks import TaskSet
from topics import curated, rollout_orders, trajectories, weights, weights_serving
from topics.rollout_orders import RolloutOrder
from topics.weights_serving import WeightsServing


class Written(NamedTuple):
    """A record of a topic's log."""

    id: str
    event: Any


class InMemoryCircle:
    """Topics as lists, agents with their states and read positions, rollouts under way, and a trainer."""

    def __init__(self, config: Config, tasks: TaskSet, odds: Odds, seed: int = 0) -> None:
        self.config = config
        self.odds = odds
        self.seed = seed
        self.random = random.Random(seed)
        self.agents = {agent.name: agent for agent in agents(config, tasks)}
        self.states: dict[str, Any] = {name: agent.state() for name, agent in self.agents.items()}
        self.logs: dict[str, list[Written]] = {}
        self.read: dict[tuple[str, str], int] = {}
        self.running: list[tuple[RolloutOrder, int]] = []
        self.trainer = CountingTrainer(config.trainer.groups_per_step)
        self.publish(weights.TOPIC.name, "", self.trainer.weights())

    def publish(self, topic: str, identity: str, event: Any) -> None:
        """Append to a topic; orders start at once, with the weights of this moment."""
        self.logs.setdefault(topic, []).append(Written(identity, event))
        if topic == rollout_orders.TOPIC.name:
            self.running.append((event, self.trainer.version))

    def lag(self, agent: Agent, topic: str) -> int:
        """Return how many records of a topic an agent has not read yet."""
        return len(self.logs.get(topic, ())) - self.read.get((agent.name, topic), 0)

    def waiting(self) -> list[tuple[Agent, str]]:
        """Return which agents have something to read, and where."""
        return [
            (agent, topic.name)
            for agent in self.agents.values()
            for topic in agent.inputs
            if self.lag(agent, topic.name)
        ]

    def deliver(self, agent: Agent, topic: str, offset: int) -> int:
        """Let an agent apply one record of a topic, whether it did before or not; return how much it decided."""
        written = self.logs[topic][offset]
        step = advance(agent, self.states[agent.name], InputRecord(topic, 0, offset, written.event, written.id))
        self.states[agent.name] = step.state
        for decision in step.decisions:
            self.publish(decision.topic.name, decision.id, decision.event)
        return len(step.decisions)

    def advance(self, agent: Agent, topic: str) -> None:
        """Let an agent apply the next record of a topic."""
        offset = self.read.get((agent.name, topic), 0)
        self.read[agent.name, topic] = offset + 1
        self.deliver(agent, topic, offset)

    def settle(self) -> None:
        """Let the agents read until nothing is left, in random turns."""
        while turns := self.waiting():
            self.advance(*self.random.choice(turns))

    def end_one(self, index: int | None = None) -> None:
        """Let one of the rollouts under way end."""
        order, version = self.running.pop(self.random.randrange(len(self.running)) if index is None else index)
        trajectory = play(order, version, self.odds, self.seed)
        self.publish(trajectories.TOPIC.name, trajectory.trajectory_id, trajectory)

    def train(self, most: int = 1_000_000) -> None:
        """Let the trainer take up to so many of the groups that wait for it."""
        groups = self.logs.get(curated.TOPIC.name, [])
        taken = len(self.trainer.trained) + len(self.trainer.waiting)
        for written in groups[taken : taken + most]:
            version = self.trainer.take(written.event)
            if version is not None:
                self.publish(weights.TOPIC.name, "", version)

    def serve(self, worker: int, version: int) -> None:
        """Let a rollout worker announce what it serves; only a coupled dispatch listens."""
        event = WeightsServing(worker_id=f"rollout-{worker}", version=version, since_ms=0, alive_ms=0)
        self.publish(weights_serving.TOPIC.name, "", event)

    def restart(self, name: str) -> None:
        """Serialise an agent's state and bring it back, as after a crash."""
        packed = msgspec.msgpack.encode(self.states[name])
        self.states[name] = msgspec.msgpack.decode(packed, type=self.agents[name].state)
