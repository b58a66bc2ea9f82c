"""A run in one process and in memory: real episodes and the real data manager, without Kafka, Cassandra or a model.

To try an environment, a policy or a curation rule of one's own before any service is started: orders of the in-memory
circle are played by the environment worker's own :class:`~workers.env.episode_runner.EpisodeRunner`, a function answers
in the model's place, and a counter stands for the trainer.
"""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from dart_streams.bus.clients import Publisher
from dart_streams.config import Config
from dart_streams.config.tasks import TaskSet
from dart_streams.curation.in_memory import CountingTrainer, InMemoryCircle
from dart_streams.episodes.trajectory_summary import summarize
from dart_streams.store import AsyncStore
from dart_streams.store.blobs import ref_of
from topics import Topic, curated, rollout_orders, trajectories, weights
from topics.action_requests import ActionRequest
from topics.actions import ActionResponse
from topics.observations import Observation
from topics.rollout_orders import RolloutOrder
from topics.trajectories import Trajectory
from topics.values import BlobRef, VersionSpan
from workers.env.environment import EnvironmentBackend
from workers.env.episode_runner import EpisodeRunner
from workers.env.policy_client import PolicyClient

Policy = Callable[[ActionRequest], str]
"""Answers a request (``turns`` is the whole prompt) with text in the action grammar, as the model would."""


class ObservationLog:
    """Stands for Kafka and Cassandra: keeps the observations that an episode publishes; screenshots are dropped."""

    def __init__(self) -> None:
        self.observations: dict[str, list[Observation]] = {}

    async def publish(self, topic: Topic, event: Any, **_headers: Any) -> None:
        """Keep an observation; there is no other event that an episode publishes."""
        self.observations.setdefault(event.trajectory_id, []).append(event)

    def hurry(self) -> None:
        """Do nothing: what is published waits for nothing here."""

    async def put_blob(self, data: bytes, media_type: str, width: int, height: int) -> BlobRef:
        """Drop a screenshot, and return its reference."""
        return ref_of(data, media_type, width, height)

    def forget_blob(self, ref: BlobRef) -> None:
        """Do nothing: no screenshot is kept."""


class PolicyFunction:
    """Stands for the rollout workers: a function answers, with the version that the trainer has reached."""

    partition = 0

    def __init__(self, policy: Policy, trainer: CountingTrainer) -> None:
        self.policy = policy
        self.trainer = trainer

    async def request(self, request: ActionRequest, timeout_s: float) -> ActionResponse:
        """Return the policy's answer as one token."""
        return ActionResponse(
            request_id=request.request_id,
            trajectory_id=request.trajectory_id,
            step=request.step,
            text=self.policy(request),
            tokens=[0],
            logprobs=[0.0],
            entropies=[1.0],
            versions=[VersionSpan(version=self.trainer.version, start=0, end=1)],
            prompt_tokens=0,
            prompt_sha="",
            worker_id="in-memory",
            queue_ms=0.0,
            generate_ms=0.0,
            error=None,
        )


class InMemoryRun:
    """Plays what dispatch orders, ``env.slots`` episodes at a time, and returns the trajectories."""

    def __init__(
        self,
        config: Config,
        tasks: TaskSet,
        backend: EnvironmentBackend,
        policy: Policy,
        circle: InMemoryCircle | None = None,
    ) -> None:
        self.config = config
        self.tasks = tasks
        self.backend = backend
        self.circle = circle or InMemoryCircle(config, tasks)
        self.trainer = CountingTrainer(config.trainer.groups_per_step)
        self.log = ObservationLog()
        self.episodes = EpisodeRunner(
            config,
            "in-memory",
            backend,
            cast(AsyncStore, self.log),
            cast(Publisher, self.log),
            cast(PolicyClient, PolicyFunction(policy, self.trainer)),
        )

    async def run(self, rollouts: int) -> list[Trajectory]:
        """Play until ``rollouts`` rollouts have ended, and return them in the order in which they ended."""
        finished: list[Trajectory] = []
        orders: list[RolloutOrder] = []
        self.circle.publish(weights.TOPIC.name, "", self.trainer.weights())
        await self.backend.start()
        try:
            while len(finished) < rollouts:
                self.circle.settle()
                self.train()
                orders += self.circle.poll(rollout_orders.TOPIC.name)
                batch, orders = orders[: self.config.env.slots], orders[self.config.env.slots :]
                if not batch:
                    break
                for trajectory in await asyncio.gather(*map(self.play, batch)):
                    finished.append(trajectory)
                    self.circle.publish(trajectories.TOPIC.name, trajectory.trajectory_id, trajectory)
        finally:
            await self.backend.stop()
        return finished

    async def play(self, order: RolloutOrder) -> Trajectory:
        """Play one order to its end."""
        await self.episodes.run(order, self.tasks.get(order.task_id), lambda _state: None)
        identity = next(key for key, seen in self.log.observations.items() if seen[0].order.order_id == order.order_id)
        return summarize(self.log.observations.pop(identity))

    def train(self) -> None:
        """Let the trainer take the groups that were curated, and announce its versions."""
        for group in self.circle.poll(curated.TOPIC.name):
            version = self.trainer.take(group)
            if version is not None:
                self.circle.publish(weights.TOPIC.name, "", version)
        self.circle.settle()
