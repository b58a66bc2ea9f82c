"""Plays one episode: does what :mod:`workers.env.episode` decides, and tells every observation.

A new screenshot is written while the request that names it travels: rollout workers look again for one that is not
there yet. Its observation is published once it is durable, so that whoever reads an observation finds the screenshot.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import structlog

from dart_streams import actions
from dart_streams.bus.clients import Publisher
from dart_streams.clock import now_ms, since_ms
from dart_streams.config import Config
from dart_streams.screens import smart_resize
from dart_streams.store import AsyncStore
from dart_streams.store.blobs import ref_of
from dart_streams.tasks import Task
from dart_streams.telemetry import names
from dart_streams.telemetry.spans import ActiveSpan
from topics.observations import EpisodeEnd
from topics.rollout_orders import RolloutOrder
from topics.transitions import FAULTS
from topics.values import BlobRef
from workers.env import metrics as instruments
from workers.env.environment import Backend, Environment, EnvironmentFault, Oracle, Screen
from workers.env.episode import Act, Ask, Episode, Evaluate, Move, Rules, Stop
from workers.env.episode_spans import EpisodeSpans
from workers.env.metrics import State
from workers.env.observation_publisher import ObservationPublisher
from workers.env.replies import Replies, UnreadableReply
from workers.env.scaling import Size, rescale
from workers.env.trajectory_ids import new_trajectory_id

log = structlog.get_logger()

ERROR_PAUSE_S = 1.0
"""A worker that answers with an error is asked again after so long, then after twice as long."""

Enter = Callable[[State], None]


class EpisodeRunner:
    """What every episode of this process shares."""

    def __init__(
        self,
        config: Config,
        worker_id: str,
        backend: Backend,
        store: AsyncStore,
        publisher: Publisher,
        replies: Replies,
    ) -> None:
        self.config = config
        self.host = worker_id
        self.backend = backend
        self.store = store
        self.publisher = publisher
        self.replies = replies

    def begin(self, order: RolloutOrder, max_steps: int) -> Episode:
        """Return the episode of an order before its first screen."""
        rules = Rules(
            max_steps=max_steps,
            request_attempts=self.config.env.request_attempts,
            loop_limit=self.config.env.loop_limit,
        )
        identity = new_trajectory_id(now_ms(), os.urandom(10))
        return Episode(order=order, trajectory_id=identity, env_host=self.host, rules=rules)

    async def play(self, order: RolloutOrder, task: Task, enter: Enter) -> EpisodeEnd:
        """Play an order to its end, and return that end once it is told; ``enter`` hears what the slot does.

        A cancelled episode ends as ``cancelled``; then the cancellation goes on.
        """
        run = EpisodeRun(self, self.begin(order, min(order.max_steps, task.max_steps)), task, enter)
        try:
            bound = structlog.contextvars.bound_contextvars(trajectory=run.episode.trajectory_id)
            with bound, run.trail.own.use():
                end = await run.play()
                tell_fault(order, end)
            run.trail.ended(end)
        finally:
            run.trail.own.end()
        return end

    async def refuse(self, order: RolloutOrder, why: str) -> EpisodeEnd:
        """Tell that an order cannot be played here at all."""
        end, episode = EpisodeEnd(kind="env_error", reward=None, reason=why), self.begin(order, 0)
        await ObservationPublisher(self.publisher).tell(episode.close(end, now_ms()), None)
        count_end(order, end)
        with structlog.contextvars.bound_contextvars(trajectory=episode.trajectory_id):
            tell_fault(order, end)
        return end


class EpisodeRun:
    """One episode under way."""

    def __init__(self, player: EpisodeRunner, episode: Episode, task: Task, enter: Enter) -> None:
        self.player = player
        self.config = player.config
        self.episode = episode
        self.task = task
        self.enter = enter
        self.journal = ObservationPublisher(player.publisher)
        self.trail = EpisodeSpans(episode.trajectory_id, task.task_id, episode.order, player.host)
        self.keeping: asyncio.Task[None] | None = None
        self.environment: Environment | None = None
        self.oracle: AsyncIterator[actions.Action] | None = None
        self.screen_size: Size = (1, 1)
        self.shown = 0.0

    async def play(self) -> EpisodeEnd:
        """Play within the wall-clock bound, whatever happens tell an end, and free the environment."""
        bound = asyncio.timeout(self.config.env.episode_timeout_s)
        try:
            async with bound:
                end = await self._reach_end()
        except EnvironmentFault as fault:
            end = EpisodeEnd(kind="env_error", reward=None, reason=str(fault))
        except TimeoutError as slow:
            if bound.expired():
                end = self.episode.straggled()
            else:
                end = EpisodeEnd(kind="env_error", reward=None, reason=f"time-out in the environment: {slow}")
        except asyncio.CancelledError:
            await self._close(EpisodeEnd(kind="cancelled", reward=None, reason="the host was told to stop"))
            raise
        await self._close(end)
        return end

    async def _close(self, end: EpisodeEnd) -> None:
        """Tell the end and free the environment, side by side."""
        last = self.episode.close(end, now_ms())
        with self.trail.current():
            telling = self.journal.tell(last, self.keeping)
        self.trail.step_told(telling)
        await asyncio.gather(telling, self._free())
        count_end(self.episode.order, end)

    async def _free(self) -> None:
        if self.oracle is not None:
            await cast(Any, self.oracle).aclose()
        if self.environment is not None:
            await self.environment.close()

    async def _reach_end(self) -> EpisodeEnd:
        move: Move = await self._reset()
        while not isinstance(move, Stop):
            match move:
                case Ask():
                    move = await self._next_answer(move)
                case Act():
                    move = await self._execute(move)
                case Evaluate():
                    move = Stop(await self._evaluate(move))
        return move.end

    async def _reset(self) -> Ask | Evaluate | Stop:
        self.enter("reset")
        began = time.perf_counter()
        self.environment = await self.player.backend.open(self.task)
        screen = await self.environment.reset(self.task)
        instruments.reset_ms.record(since_ms(began))
        self.screen_size = (screen.width, screen.height)
        if self.episode.order.purpose == "demonstration":
            self.oracle = oracle_of(self.environment).demonstrate(self.task)
        return self._show(screen, 0.0)

    def _show(self, screen: Screen, execute_ms: float) -> Ask | Evaluate | Stop:
        self.enter("wait")
        self.shown = time.perf_counter()
        ref, self.keeping = None, None
        if screen.image is not None:
            ref = ref_of(screen.image, screen.media_type, screen.width, screen.height)
            if not self.player.store.has_kept(ref):
                self.keeping = asyncio.create_task(self._keep(screen.image, ref))
        self.episode = self.episode.show(ref, screen.instruction, now_ms(), execute_ms)
        return self.episode.after_screen(screen.done)

    async def _keep(self, image: bytes, ref: BlobRef) -> None:
        began = time.perf_counter()
        await self.player.store.put_blob(image, ref.media_type, ref.width, ref.height)
        instruments.blob_write_ms.record(since_ms(began))

    async def _next_answer(self, ask: Ask) -> Move:
        """Tell the fresh observation and get the answer to it, from the oracle or from the policy."""
        self.enter("wait")
        fresh = self.episode.fresh
        self.episode = self.episode.settle()
        telling = None
        if fresh is not None:
            with self.trail.current():
                telling = self.journal.tell(fresh, self.keeping)
            self.trail.step_told(telling)
            self.trail.begin_step(fresh.step)
        with self.trail.current():
            move = await (self._ask(ask.attempt) if self.oracle is None else self._demonstrated())
        if telling is not None:
            await telling
        return move

    async def _demonstrated(self) -> Move:
        assert self.oracle is not None
        self.enter("step")
        try:
            action = await anext(self.oracle)
        except StopAsyncIteration:
            return Evaluate(cut=False)
        self.episode, move = self.episode.demonstrate(rescale(action, self.screen_size, self._policy_size()))
        return move

    async def _ask(self, attempt: int) -> Move:
        policy, timeout_s = self.config.policy, self.config.env.request_timeout_s
        request = self.episode.request(
            attempt,
            self.episode.turns(policy.max_images, policy.max_texts),
            self.player.replies.partition,
            now_ms() + int(timeout_s * 1000),
        )
        began = self.shown if attempt == 0 else time.perf_counter()
        with ActiveSpan(
            names.SPAN_REQUEST, attributes=self.trail.attributes | {names.ATTR_REQUEST: request.request_id}
        ) as span:
            try:
                reply = await self.player.replies.ask(request, timeout_s)
            except TimeoutError:
                why = f"no reply to {request.request_id} within {timeout_s:g} s"
                span.set_error(why)
                return self._unanswered(attempt, why)
            except UnreadableReply as error:
                span.set_error(str(error))
                return self._unanswered(attempt, f"unreadable reply to {request.request_id}: {error}")
        self.episode, move = self.episode.hear(reply, attempt)
        if reply.error is None:
            trip_ms = since_ms(began)
            instruments.request_ms.record(trip_ms)
            instruments.overhead_ms.record(max(0.0, trip_ms - reply.queue_ms - reply.generate_ms))
        elif isinstance(move, Ask):
            await asyncio.sleep(ERROR_PAUSE_S * move.attempt)
        return move

    def _unanswered(self, attempt: int, why: str) -> Move:
        log.debug("no answer", because=why, attempt=attempt + 1, of=self.config.env.request_attempts)
        return self.episode.after_silence(attempt, why)

    async def _execute(self, act: Act) -> Ask | Evaluate | Stop:
        assert self.environment is not None
        self.enter("step")
        began = time.perf_counter()
        action = rescale(act.action, self._policy_size(), self.screen_size)
        with self.trail.current(), ActiveSpan(names.SPAN_EXECUTE, attributes=self.trail.attributes):
            screen = await self.environment.step(action, act.action_id, self.episode.on_last_step)
        execute_ms = since_ms(began)
        instruments.execute_ms.record(execute_ms)
        instruments.steps.add(1, {"purpose": self.episode.order.purpose})
        return self._show(screen, execute_ms)

    async def _evaluate(self, judge: Evaluate) -> EpisodeEnd:
        assert self.environment is not None
        self.enter("evaluate")
        return self.episode.judged(judge.cut, await self.environment.evaluate())

    def _policy_size(self) -> Size:
        policy = self.config.policy
        return smart_resize(*self.screen_size, policy.min_pixels, policy.max_pixels)


def oracle_of(environment: Environment) -> Oracle:
    """Return the environment as an oracle; raise :class:`EnvironmentFault` if it is none."""
    if not hasattr(environment, "demonstrate"):
        raise EnvironmentFault(f"{type(environment).__name__} has no oracle: it cannot demonstrate a task")
    return cast(Oracle, environment)


def tell_fault(order: RolloutOrder, end: EpisodeEnd) -> None:
    """Log an end that is a fault of the infrastructure."""
    if end.kind in FAULTS:
        log.warning("episode failed", order=order.order_id, task=order.task_id, outcome=end.kind, why=end.reason)


def count_end(order: RolloutOrder, end: EpisodeEnd) -> None:
    """Count a finished episode."""
    page = order.task_id.rpartition("#")[0]
    instruments.episodes.add(1, {"outcome": end.kind, "purpose": order.purpose, "page": page})
