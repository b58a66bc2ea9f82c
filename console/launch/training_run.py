"""A run's phases: 1 policy, 2 topics, 3 start, 4 demonstrations, 5 before, 6 circle, 7 settle, 8 after, 9 drain.

A run starts and stops processes and publishes orders. It reads their progress from the topics alone.
"""

import asyncio
import contextlib
import dataclasses
import functools
import math
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec
import structlog

from console.launch import evaluate, run_wait, topic_identity
from console.launch.order_audit import AwaitedOrderAudit, audit_orders
from console.launch.processes import ProcessSet
from console.launch.service_waits import describe_waits, find_waits
from console.launch.supervisor import Supervisor
from console.runs import evaluation, open_orders
from console.runs.run_folder import PhaseLog, RunFolder, write_json
from console.runs.run_follower import RunFollower, follow_run
from console.runs.run_state import Retention, RunState
from dart_streams.bus import admin
from dart_streams.bus.clients import Publisher
from dart_streams.bus.lag import Lag
from dart_streams.clock import now_ms
from dart_streams.config import Config
from dart_streams.config.tasks import TaskSet
from dart_streams.config.text import lines_of
from dart_streams.curation.recipes import wants_demonstrations
from dart_streams.deadline import Deadline
from dart_streams.episodes.demonstrations import demonstration_order
from dart_streams.errors import ConfigError, UserError
from dart_streams.store import sessions
from topics import rollout_orders
from workers.curator.changelogs import changelog_topics

RETENTION = Retention(orders=20_000, groups=2_500)
"""Retention of a running run, with eight orders a group; its report reads all records."""
SERVE_TIMEOUT_S = 60.0
GRACE_S = 30.0
"""Margin after which a wait with a natural end fails."""


@dataclasses.dataclass
class TrainingRun:
    """One run. :meth:`run` goes through its phases; the display reads :attr:`journal` and :attr:`follower`.

    An outside supervisor keeps the processes of an *attached* run alive. The run orders evaluations, and waits for the
    trainer's last step. The outside supervisor must start the curator after the evaluation before training, with which
    a ``before_only`` run ends (docker-compose.yml). ``enough`` ends the training phase early, by default after
    ``run.train_steps`` or the trainer's last step.
    """

    folder: RunFolder
    supervisor: Supervisor
    processes: ProcessSet
    _: dataclasses.KW_ONLY
    attached: bool
    notify: Callable[[str], None]
    find_policy: Callable[[Supervisor], Awaitable[str]] | None
    before_only: bool
    follower: RunFollower | None = dataclasses.field(default=None, init=False)
    has_topics: asyncio.Event = dataclasses.field(default_factory=asyncio.Event, init=False)
    circle_end: Deadline | None = dataclasses.field(default=None, init=False)
    lags: list[Lag] | None = dataclasses.field(default=None, init=False)
    planned_eval: int = dataclasses.field(default=0, init=False)
    endpoint_fault: str = dataclasses.field(default="", init=False)

    def __post_init__(self) -> None:
        self.config: Config = self.folder.config()
        self.tasks: TaskSet = self.folder.tasks()
        self.journal: PhaseLog = self.folder.journal().resume()
        self.supervisor.on_death = self.note_death
        steps = last_train_step(self.config)
        self.enough: Callable[[RunState], bool] = lambda state: steps is not None and trained_steps(state) >= steps
        self.log: Any = structlog.get_logger()

    async def run(self) -> None:
        """Go through the phases in their order; the services are up."""
        # Before the policy: the players of its demonstrations need the tables.
        await asyncio.to_thread(sessions.create_schema, self.config.store)
        if self.find_policy is not None:
            with self.phase("policy"):
                self.notify(await self.find_policy(self.supervisor))
        with self.phase("topics"):
            await self.apply_topics()
        trains = self.config.run.trains and not self.before_only
        async with (
            Publisher(self.config.bus, "supervisor") as publisher,
            follow_run(self.config.bus, publisher, self.config.telemetry.stall_s, keep=RETENTION) as follower,
            audit_orders(follower, publisher, self.notify) as audit,
        ):
            follower.log = EchoLogger(self.log, self.notify, self.describe_silence)
            self.follower = follower
            self.has_topics.set()
            with self.phase("start"):
                demonstrations = await self.start(follower, publisher)
            with self.phase("demonstrations"):
                await self.finish_demonstrations(follower, demonstrations)
            if self.config.evaluation.episodes and not is_evaluated(self.config, self.journal):
                with self.phase("before"):
                    version, of = await self.evaluate(follower, publisher), self.config.rollout.endpoint_model
                    self.journal = msgspec.structs.replace(self.journal, before_version=version, before_model=of)
            if trains:
                with self.phase("circle"):
                    await self.train(follower)
                with self.phase("settle"):
                    await self.settle(follower, audit)
            if self.config.evaluation.episodes and trains:
                with self.phase("after"):
                    version = await self.evaluate(follower, publisher)
                    self.journal = msgspec.structs.replace(self.journal, after_version=version)
            if not self.attached:
                with self.phase("drain"):
                    await self.supervisor.stop_all()
            self.lags = await follower.read_final()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Write the begin and the end of a phase to the journal."""
        self.journal = self.journal.begin(name, now_ms())
        self.folder.write_journal(self.journal)
        self.log.info("phase", name=name)
        try:
            yield
        finally:
            self.journal = self.journal.end(now_ms())
            self.folder.write_journal(self.journal)

    def describe_wait(self) -> str:
        """Return what the present phase waits for, empty where its figures say it."""
        phase = self.journal.phases[-1].name if self.journal.phases else ""
        missing = {spec.name for spec in self.processes.rollout}
        missing -= self.live_workers(self.follower) if self.follower else set()
        progress = self.follower.progress if self.follower else RunState()
        return run_wait.describe_wait(self.config, phase, progress, missing, self.endpoint_fault)

    def describe_silence(self, silent_s: float) -> str:
        """Return what the run has waited for while its topics were silent, empty if it is not known.

        A process that waits for a service says so in its log, shortly before its last records or after them.
        """
        now_s = now_ms() / 1000
        logs = {name: lines_of(child.tail()) for name, child in self.supervisor.children.items()}
        began_s = now_s - silent_s - self.config.telemetry.stall_s
        return self.describe_wait() or describe_waits(find_waits(logs, began_s, now_s))

    def note_endpoint(self, fault: str) -> None:
        """Show that the policy's endpoint does not answer, or answers again."""
        self.endpoint_fault, url = fault, self.config.rollout.openai.base_url
        remedy = "start it, or set rollout.openai.base_url; rollout workers wait for it"
        self.notify(f"the endpoint {url} does not answer ({fault}): {remedy}" if fault else f"{url} answers now")

    def note_death(self, process: str, reason: str, last_line: str, restarts: bool) -> None:
        """Write the death of a process to the journal, or with a full disk at the next phase."""
        self.journal = self.journal.with_death(process, reason, last_line, now_ms(), restarts=restarts)
        try:
            self.folder.write_journal(self.journal)
        except UserError as error:
            self.log.warning("a death was not written down", child=process, reason=str(error))

    async def check_access(self) -> None:
        """Raise AccessRefused if the broker or the database rejects the client, before any process starts."""

        def check_broker() -> None:
            with admin.connect(self.config.bus):
                pass

        await asyncio.gather(asyncio.to_thread(check_broker), asyncio.to_thread(sessions.check, self.config.store))

    async def apply_topics(self) -> None:
        """Create or change the topics; raise LogGone if a resumed run has lost its log."""
        bus, known = self.config.bus, self.folder.topic_ids()
        for line in await asyncio.to_thread(topic_identity.missing_topics, bus, known, self.folder.id):
            self.notify(line)
        changes = await asyncio.to_thread(admin.apply_all, bus, changelog_topics(self.config), keep_grown=True)
        write_json(self.folder.topics_file, await asyncio.to_thread(topic_identity.read, bus))
        self.notify(f"{len(changes)} changes of topics {self.config.bus.prefix}* applied")

    async def start(self, follower: RunFollower, publisher: Publisher) -> set[str]:
        """Start all processes but the curator, wait for served weights, and return the ids of demonstration orders."""
        run = self.processes
        await self.supervisor.start([*run.env, *run.recorder, *run.trainer, *run.rollout, *run.monitor, *run.tracker])
        # An oracle needs no weights; requests to an endpoint would time out before weights are served.
        ask_now = not self.config.rollout.demonstrates
        demonstrations = await self.order_demonstrations(follower, publisher) if ask_now else set()
        wanted = {spec.name for spec in run.rollout}
        await follower.until(
            lambda _: bool(live := self.live_workers(follower)) and wanted <= live,
            "a rollout worker to serve a weight version" if self.attached else "every rollout worker to serve weights",
            self.config.rollout.vllm.start_s,
            "Look at the logs of trainer and rollout"
            + ("" if self.attached else f" in {self.folder.path / 'logs'}")
            + "; if the model is still being read or compiled, raise rollout.vllm.start_s",
        )
        self.notify(f"weight version {self.served(follower)} is served")
        return demonstrations if ask_now else await self.order_demonstrations(follower, publisher)

    def live_workers(self, follower: RunFollower) -> set[str]:
        """Return the live rollout workers by their heartbeats."""
        return follower.heartbeats.alive(self.config.rollout.liveness_s)

    def served(self, follower: RunFollower) -> int | None:
        """Return the newest version that all rollout workers of this start serve, or all live ones if attached."""
        own = {spec.name for spec in self.processes.rollout}
        return follower.progress.served_by(self.live_workers(follower) if self.attached else own)

    async def order_demonstrations(self, follower: RunFollower, publisher: Publisher) -> set[str]:
        """Order a demonstration of each training task for pool or recipe, and return the ids of the orders."""
        if not wants_demonstrations(self.config):
            return set()
        wanted = [
            demonstration_order(f"demonstration-{task.task_id}", task.task_id, task.max_steps, self.config)
            for task in self.tasks.train
        ]
        for order in wanted:
            if order.order_id not in follower.progress.orders:
                await publisher.publish(rollout_orders.TOPIC, order)
        return {order.order_id for order in wanted}

    async def finish_demonstrations(self, follower: RunFollower, ids: set[str]) -> None:
        """Wait until every demonstration has ended, each at most ``evaluation.timeout_s`` after the one before."""
        while (ended := len(ids & follower.progress.finished.keys())) < len(ids):
            await follower.until(
                functools.partial(have_ended, ids, ended + 1),
                f"another demonstration of a training task ({ended} of {len(ids)} have ended)",
                self.config.evaluation.timeout_s,
                "Look at the logs of env-0 and recorder-0; on a busy machine raise evaluation.timeout_s",
            )
        if not ids:
            return
        won = sum(follower.progress.finished[identity].outcome == "success" for identity in ids)
        self.notify(f"{won} of {len(ids)} training tasks demonstrated")

    async def evaluate(self, follower: RunFollower, publisher: Publisher) -> int:
        """Evaluate the served version, and return it."""
        version = self.served(follower) or 0
        self.planned_eval = sum(map(len, evaluation.all_orders(self.config, self.tasks, version)))
        result = await evaluate.evaluate(self.config, self.tasks, follower, publisher, version)
        overall = result.overall
        self.notify(
            f"version {version}: {overall.rate:.1%} of {overall.trials} held-out episodes succeed "
            f"(95 % interval {overall.low:.1%} to {overall.high:.1%})"
        )
        return result.version

    async def train(self, follower: RunFollower) -> None:
        """Train for ``run.minutes`` or until :attr:`enough`.

        An attached run trains until its trainer's last step, or until a signal ends it if the trainer has none.
        """
        limit_s = self.config.run.minutes * 60
        if self.attached and self.config.trainer.max_train_steps is None:
            await follower.until(lambda _: False, "a signal: trainer.max_train_steps is not set", math.inf)
        self.circle_end = end = Deadline(limit_s)
        if self.attached:
            last = required_steps(self.config)
            advice = "Look at the log of the trainer, raise run.minutes, or lower trainer.max_train_steps"
            await follower.until(lambda state: trained_steps(state) >= last, f"{last} optimizer steps", limit_s, advice)
        else:
            await self.supervisor.start(self.processes.curator)
            await follower.until(lambda state: end.expired or self.enough(state), "training to end", limit_s + GRACE_S)
        self.circle_end = None

    async def settle(self, follower: RunFollower, audit: AwaitedOrderAudit) -> None:
        """Stop ordering and training; wait until open orders have finished and the last version is served."""
        await self.supervisor.stop(*(spec.name for spec in self.processes.curator))
        audit.settles = True
        await self.supervisor.stop(*(spec.name for spec in self.processes.trainer))
        fixed = self.config.rollout.fixed_weights
        await follower.until(
            lambda state: fixed or (self.served(follower) or 0) >= (state.newest_version or 0),
            "the last weight version to be served",
            SERVE_TIMEOUT_S,
            "Look at the log of rollout-0",
        )
        # An episode on a desktop may take longer than run.settle_s.
        settle_s = self.config.run.settle_s
        end = Deadline(settle_s)
        await follower.until(
            lambda state: not open_orders.unfinished_orders(state, "train") or end.expired,
            "open training orders to finish",
            settle_s + GRACE_S,
        )
        if still := open_orders.unfinished_orders(follower.progress, "train"):
            self.notify(
                f"{len(still)} training orders have not finished after {settle_s:g} s (run.settle_s): they go back to "
                "their topic, for a run that resumes this one"
            )


class EchoLogger:
    """A logger that also shows warnings at the terminal.

    ``waiting`` returns in plain words what the run has waited for during a silence (seconds), empty if not known.
    """

    def __init__(self, log: Any, notify: Callable[[str], None], waiting: Callable[[float], str]) -> None:
        self.log = log
        self.notify = notify
        self.waiting = waiting

    def warning(self, event: str, **fields: Any) -> None:
        """Log a warning, and show it."""
        self.log.warning(event, **fields)
        if "waits_for" in fields:
            waits_for, silent_s, last = fields["waits_for"], fields["silent_s"], fields["last_from"]
            source = "" if last == "none yet" else f" since one from {last}"
            self.notify(
                f"{self.waiting(silent_s) or f'waiting for {waits_for}'}: no record for {silent_s:.0f} s{source}"
            )
            return
        details = [f"{name.replace('_', ' ')} {value}" for name, value in fields.items()]
        self.notify(f"{event}: {', '.join(details)}")


def have_ended(orders: set[str], count: int, state: RunState) -> bool:
    """Return whether ``count`` of the orders have ended."""
    return len(orders & state.finished.keys()) >= count


def trained_steps(state: RunState) -> int:
    """Return the number of optimizer steps behind the newest version."""
    newest = state.newest_version
    return state.versions[newest].event.train_step if newest is not None else 0


def is_evaluated(config: Config, journal: PhaseLog) -> bool:
    """Return whether this policy was evaluated before training; a resumed run may have had another endpoint."""
    return journal.before_version is not None and journal.before_model == config.rollout.endpoint_model


def last_train_step(config: Config) -> int | None:
    """Return the optimizer step that ends training, None if only time does: the run's or the trainer's own."""
    bounds = (config.run.train_steps, config.trainer.max_train_steps)
    return min((steps for steps in bounds if steps is not None), default=None)


def required_steps(config: Config) -> int:
    """Return the number of the trainer's last step; raise :class:`ConfigError` if it has none."""
    if config.trainer.max_train_steps is None:
        raise ConfigError("trainer.max_train_steps is not set: the report is written after that many steps")
    return config.trainer.max_train_steps
