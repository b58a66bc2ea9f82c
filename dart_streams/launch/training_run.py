"""A run's life, phase by phase: policy, topics, start, demonstrations, before, circle, settle, after, drain.

It starts and stops processes and publishes orders; all it knows of what they do it reads from the topics.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec
import structlog

from dart_streams.bus import admin
from dart_streams.bus.clients import Publisher
from dart_streams.bus.lag import Lag
from dart_streams.bus.topology import TopicSpec
from dart_streams.clock import now_ms
from dart_streams.config import Config
from dart_streams.history.evaluation import EvaluationResult
from dart_streams.history.run_folder import PhaseLog, RunFolder
from dart_streams.history.run_follower import RunFollower, following
from dart_streams.history.run_state import RunState
from dart_streams.launch import evaluate
from dart_streams.launch.processes import ProcessSet
from dart_streams.launch.services import local
from dart_streams.launch.supervisor import Supervisor
from dart_streams.store import sessions
from dart_streams.tasks import Task, TaskSet
from dart_streams.telemetry.stall_detector import StallDetector
from topics import rollout_orders
from topics.rollout_orders import RolloutOrder

START_S = 240.0
SERVED_S = 60.0
SETTLED_S = 30.0
"""So much later than asked for, at most, does the wait for open orders end."""


class TrainingRun:
    """One run. :meth:`live` is its whole life; :attr:`phase` and :attr:`watch` are what the display reads."""

    def __init__(
        self,
        folder: RunFolder,
        supervisor: Supervisor,
        cast: ProcessSet,
        *,
        extra_topics: tuple[TopicSpec, ...] = (),
        tell: Callable[[str], None],
        find_policy: Callable[[], Awaitable[str]] | None = None,
    ) -> None:
        self.folder = folder
        self.config: Config = folder.config()
        self.tasks: TaskSet = folder.tasks()
        self.supervisor = supervisor
        self.cast = cast
        self.extra_topics = extra_topics
        self.tell = tell
        self.find_policy = find_policy
        self.journal: PhaseLog = folder.journal()
        self.watch: RunFollower | None = None
        self.watched = asyncio.Event()
        self.circle_ends_s: float | None = None
        self.lags: list[Lag] = []
        self.log: Any = structlog.get_logger()

    async def live(self) -> None:
        """Go through all phases that need the services up."""
        if self.find_policy is not None:
            with self.phase("policy"):
                self.tell(await self.find_policy())
        with self.phase("topics"):
            # Whoever may not read the database hears of it here, once, and not from each process.
            changes, _ = await asyncio.gather(
                asyncio.to_thread(admin.apply_all, self.config.bus, self.extra_topics),
                asyncio.to_thread(sessions.check, self.config.store),
            )
            self.tell(f"{len(changes)} changes of topics {self.config.bus.prefix}* applied")
        async with (
            Publisher(self.config.bus, "supervisor") as publisher,
            following(self.config.bus, publisher, self.config.telemetry.stall_s) as watch,
        ):
            self.watch = watch
            watch.log = EchoLogger(self.log, self.tell)
            self.watched.set()
            await self.act(watch, publisher)
            self.lags = await watch.read_final()

    async def act(self, watch: RunFollower, publisher: Publisher) -> None:
        """Start the processes, train, and evaluate before and after."""
        await self.begin(watch, publisher)
        await self.turn(watch, publisher)
        with self.phase("drain"):
            await self.supervisor.stop_all()

    async def begin(self, watch: RunFollower, publisher: Publisher) -> None:
        """Start what plays and learns, have the training tasks demonstrated, and evaluate before."""
        with self.phase("start"):
            await self.supervisor.start([*self.cast.env, *self.cast.recorder, *self.cast.trainer, *self.cast.rollout])
            await self.supervisor.start(self.cast.monitor)
            demonstrations = await self.order_demonstrations(watch, publisher)
            await self.serve(watch)
        with self.phase("demonstrations"):
            await self.finish_demonstrations(watch, demonstrations)
        if self.config.run.evaluate and self.journal.before_version is None:
            with self.phase("before"):
                result = await self.evaluate(watch, publisher)
                self.journal = msgspec.structs.replace(self.journal, before_version=result.version)

    async def turn(self, watch: RunFollower, publisher: Publisher) -> None:
        """Train, let what is under way finish, and evaluate after."""
        with self.phase("circle"):
            await self.train(watch)
        with self.phase("settle"):
            await self.settle(watch)
        if self.config.run.evaluate:
            with self.phase("after"):
                result = await self.evaluate(watch, publisher)
                self.journal = msgspec.structs.replace(self.journal, after_version=result.version)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Note in the journal when a phase begins and ends."""
        self.journal = self.journal.begin(name, now_ms())
        self.folder.write_journal(self.journal)
        self.log.info("phase", name=name)
        try:
            yield
        finally:
            self.journal = self.journal.end(now_ms())
            self.folder.write_journal(self.journal)

    async def serve(self, watch: RunFollower) -> None:
        """Wait until a version is served by every rollout worker."""
        wanted = {spec.name for spec in self.cast.rollout}
        await watch.until(
            lambda progress: wanted <= alive(progress, self.config.rollout.liveness_s),
            "every rollout worker to serve a weight version",
            START_S,
            f"Look at the logs in {self.folder.path / 'logs'}",
        )
        self.tell(f"weight version {self.served(watch.progress)} is served")

    def served(self, progress: RunState) -> int | None:
        """Return the newest version that every rollout worker serves."""
        return progress.served_version

    async def order_demonstrations(self, watch: RunFollower, publisher: Publisher) -> set[str]:
        """Order one demonstration of each training task, for the experience pool, and return their ids.

        They need no weights: they are played while trainer and engine start.
        """
        if not (self.config.curation.pool.enabled and self.config.run.demonstrate):
            return set()
        wanted = [demonstration(task, self.config) for task in self.tasks.train]
        for order in wanted:
            if order.order_id not in watch.progress.orders:
                await publisher.publish(rollout_orders.TOPIC, order)
        return {order.order_id for order in wanted}

    async def finish_demonstrations(self, watch: RunFollower, ids: set[str]) -> None:
        """Wait until every demonstration has ended."""
        await watch.until(
            lambda progress: ids <= progress.finished.keys(),
            "one demonstration of each training task",
            self.config.evaluation.timeout_s,
            "Look at the logs of env-0 and recorder-0",
        )
        won = sum(watch.progress.finished[identity].outcome == "success" for identity in ids)
        self.tell(f"{won} of {len(ids)} training tasks demonstrated")

    async def evaluate(self, watch: RunFollower, publisher: Publisher) -> EvaluationResult:
        """Evaluate the version that is served now."""
        version = self.served(watch.progress) or 0
        result = await evaluate.evaluate(self.config, self.tasks, watch, publisher, version)
        overall = result.overall
        self.tell(
            f"version {version}: {overall.rate:.1%} of {overall.trials} held-out episodes succeed "
            f"(95 % interval {overall.low:.1%} to {overall.high:.1%})"
        )
        return result

    async def train(self, watch: RunFollower) -> None:
        """Let the circle turn for its time, or its number of optimiser steps."""
        await self.supervisor.start(self.cast.curator)
        self.circle_ends_s = time.monotonic() + self.config.run.minutes * 60
        bound = self.config.run.train_steps
        waiting = StallDetector(watch.log, "anything to happen", watch.stall_s)
        while (left_s := self.circle_ends_s - time.monotonic()) > 0:
            if bound is not None and trained_steps(watch.progress) >= bound:
                break
            await asyncio.sleep(min(0.2, left_s))
            watch.raise_if_reader_failed()
            watch.check(waiting)
        self.circle_ends_s = None

    async def settle(self, watch: RunFollower) -> None:
        """Stop ordering and training; wait until open orders have finished and the last version is served."""
        await self.supervisor.stop(*(spec.name for spec in self.cast.curator))
        await self.supervisor.stop(*(spec.name for spec in self.cast.trainer))
        await watch.until(
            lambda progress: (self.served(progress) or 0) >= (progress.newest_version or 0),
            "the last weight version to be served",
            SERVED_S,
            "Look at the log of rollout-0",
        )
        await self.finish_orders(watch)

    async def finish_orders(self, watch: RunFollower) -> None:
        """Wait until open orders have finished, or for ``run.settle_s``: an episode on a desktop may take longer."""
        deadline_s = time.monotonic() + self.config.run.settle_s
        await watch.until(
            lambda progress: not progress.unfinished("train") or time.monotonic() >= deadline_s,
            "open training orders to finish",
            self.config.run.settle_s + SETTLED_S,
        )
        if still := list(watch.progress.unfinished("train")):
            self.tell(
                f"{len(still)} training orders have not finished after {self.config.run.settle_s:g} s (run.settle_s): "
                "they go back to their topic, for a run that resumes this one"
            )


class EchoLogger:
    """A log whose warnings the person at the terminal hears too."""

    def __init__(self, log: Any, tell: Callable[[str], None]) -> None:
        self.log = log
        self.tell = tell

    def warning(self, event: str, **fields: Any) -> None:
        """Log a warning, and say it."""
        self.log.warning(event, **fields)
        details = [f"{name.replace('_', ' ')} {value}" for name, value in fields.items()]
        self.tell(f"{event}: {', '.join(details)}")


def alive(progress: RunState, liveness_s: float) -> set[str]:
    """Return the rollout workers heard of lately."""
    since_ms = now_ms() - liveness_s * 1000
    return {name for name, worker in progress.serving.items() if worker.alive_ms >= since_ms}


def trained_steps(progress: RunState) -> int:
    """Return how many optimiser steps the newest version has behind it."""
    newest = progress.newest_version
    return progress.versions[newest].event.train_step if newest is not None else 0


def demonstration(task: Task, config: Config) -> RolloutOrder:
    """Return the order of a task's demonstration, the same one each time."""
    return RolloutOrder(
        order_id=f"demonstration-{task.task_id}",
        group_id="demonstrations",
        group_size=1,
        sample=0,
        attempt=0,
        task_id=task.task_id,
        max_steps=task.max_steps,
        purpose="demonstration",
        sampling=config.sampling(),
        after_version=0,
    )


async def bring_up(config: Config, tell: Callable[[str], None]) -> bool:
    """Start the local services unless they answer already; return whether this call started any.

    Raises
    ------
    ServiceUnavailable
        If one cannot be started, or a configured service elsewhere does not listen.
    """
    places = [(host, int(port)) for host, _, port in (s.rpartition(":") for s in config.bus.servers.split(","))]
    places += [(host, config.store.port) for host in config.store.hosts]
    if await asyncio.to_thread(lambda: all(listens(*place) for place in places)):
        tell("Kafka and Cassandra are up already")
        return False
    running = await asyncio.to_thread(local.up, config, tell)
    return any(service.started for service in running)


def listens(host: str, port: int) -> bool:
    """Say whether something listens there."""
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError:
        return False
    return True
