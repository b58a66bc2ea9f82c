"""Whole episodes: the real runner, with a log and a policy of a few lines in place of Kafka, Cassandra and a model."""

from typing import Any, cast

from dart_streams.bus.codec import encode
from dart_streams.config import Config, parse
from dart_streams.config.tasks import Task
from dart_streams.curation.in_memory import CountingTrainer
from examples.in_memory_run import ObservationLog, PolicyFunction
from tests import events
from topics import Topic
from topics.observations import Observation
from topics.values import Purpose
from workers.env.backends.simulated import SimulatedBackend
from workers.env.episode_runner import EpisodeRunner

TRAINER = CountingTrainer(parse({}).trainer.groups_per_step)


class EncodingLog(ObservationLog):
    """Refuses what cannot be published, as a publisher does."""

    async def publish(self, topic: Topic, event: Any, **options: Any) -> None:
        encode(topic, event)
        await super().publish(topic, event, **options)


class StoredLog(ObservationLog):
    """Returns what it keeps, as the store does."""

    async def steps(self, trajectory_id: str) -> list[Observation]:
        return self.observations.get(trajectory_id, [])


def simulated_config(**tables: Any) -> Config:
    """Return a configuration with a simulated environment that needs no time."""
    quick = {"reset_ms": 0, "step_ms": 0, "evaluate_ms": 0}
    return parse({"env": {"backend": "simulated", "simulated": quick}, **tables})


def runner_of(config: Config, backend: Any, log: ObservationLog, policy: PolicyFunction) -> EpisodeRunner:
    """Return the runner of a worker."""
    return EpisodeRunner(config, "env-0", backend, cast(Any, log), cast(Any, log), cast(Any, policy))


async def play(
    config: Config,
    policy: PolicyFunction,
    page: str = "steps-3",
    purpose: Purpose = "train",
    log: ObservationLog | None = None,
    backend: SimulatedBackend | None = None,
    max_steps: int = 6,
) -> list[list[Observation]]:
    """Play an order of a page; return the observations of each trajectory."""
    log = log or ObservationLog()
    task = Task(environment="simulated", page=page, seed=3, max_steps=max_steps, split="train")
    order = events.rollout_order(task_id=task.task_id, purpose=purpose)
    await runner_of(config, backend or SimulatedBackend(config), log, policy).run(order, task, lambda _: None)
    return list(log.observations.values())
