"""A run whose processes somebody else keeps alive: containers, or a cluster.

It orders the evaluations, waits for the trainer to make its steps, and tells how it went. The curator must not run
before the success before training is measured: whoever starts the processes sees to that (docker-compose.yml).
"""

import time
from collections.abc import Callable

from dart_streams.bus.clients import Publisher
from dart_streams.bus.topology import TopicSpec
from dart_streams.config import Config
from dart_streams.errors import ConfigError
from dart_streams.history.run_folder import RunFolder
from dart_streams.history.run_follower import RunFollower
from dart_streams.history.run_state import RunState
from dart_streams.launch.processes import ProcessSet
from dart_streams.launch.supervisor import Supervisor
from dart_streams.launch.training_run import START_S, TrainingRun, alive, trained_steps

NOBODY = ProcessSet((), (), (), (), (), ())


class Attached(TrainingRun):
    """One run, watched and measured. With ``before_only`` it ends when the success before training is known."""

    def __init__(
        self,
        folder: RunFolder,
        supervisor: Supervisor,
        *,
        extra_topics: tuple[TopicSpec, ...] = (),
        tell: Callable[[str], None],
        before_only: bool = False,
    ) -> None:
        super().__init__(folder, supervisor, NOBODY, extra_topics=extra_topics, tell=tell)
        self.before_only = before_only

    async def act(self, watch: RunFollower, publisher: Publisher) -> None:
        """Go through all phases, or only through the first."""
        await self.begin(watch, publisher)
        if not self.before_only:
            await self.turn(watch, publisher)

    async def serve(self, watch: RunFollower) -> None:
        """Wait until any rollout worker serves: how many there are is not known here."""
        await watch.until(
            lambda progress: self.served(progress) is not None,
            "a rollout worker to serve a weight version",
            START_S,
            "Look at the logs of trainer and rollout",
        )
        self.tell(f"weight version {self.served(watch.progress)} is served")

    def served(self, progress: RunState) -> int | None:
        """Return the newest version that every rollout worker serves that is still there: they come and go here."""
        living = alive(progress, self.config.rollout.liveness_s)
        return min((progress.serving[name].version for name in living), default=None)

    async def train(self, watch: RunFollower) -> None:
        """Wait until the trainer has made all of its steps."""
        steps, limit_s = bound(self.config), self.config.run.minutes * 60
        self.circle_ends_s = time.monotonic() + limit_s
        await watch.until(
            lambda progress: trained_steps(progress) >= steps,
            f"{steps} optimiser steps",
            limit_s,
            "Look at the log of the trainer, raise run.minutes, or lower trainer.max_train_steps",
        )
        self.circle_ends_s = None


def bound(config: Config) -> int:
    """Return after how many steps the trainer ends; raise :class:`ConfigError` if it never does."""
    if config.trainer.max_train_steps is None:
        raise ConfigError("trainer.max_train_steps is not set: an attached run ends when the trainer has made so many")
    return config.trainer.max_train_steps
