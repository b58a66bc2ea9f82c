"""Runs episodes: executes the decisions of :mod:`dart_streams.episodes.episode`, and publishes all observations.

A screenshot is written while its request travels: rollout workers retry one that is not in the store yet. Its
observation is published once the screenshot is durable, so that all readers of an observation find it.
"""

import asyncio
import os
import time
from collections.abc import Callable

import msgspec
import structlog

from dart_streams import actions
from dart_streams.bus.clients import Publisher
from dart_streams.bus.codec import Unencodable
from dart_streams.clock import now_ms, since_ms
from dart_streams.config import Config
from dart_streams.config.tasks import Task
from dart_streams.episodes import guidance, prompts
from dart_streams.episodes.episode import (
    Episode,
    EpisodeLimits,
    Evaluate,
    Execute,
    Move,
    RequestAction,
    Stop,
    new_trajectory_id,
)
from dart_streams.screens import smart_resize
from dart_streams.store import AsyncStore
from dart_streams.store.blobs import ref_of
from dart_streams.telemetry import names
from dart_streams.telemetry.spans import ActiveSpan, send_attributes
from topics import action_requests, observations
from topics.observations import EpisodeEnd, Observation
from topics.rollout_orders import RolloutOrder
from topics.transitions import FAULTS
from topics.values import BlobRef, Verdict
from workers.env import metrics, persons
from workers.env.environment import EnvironmentBackend, EnvironmentFault, Screen, Size, require_offered, rescale
from workers.env.episode_spans import EpisodeSpans
from workers.env.fault_boundary import ContainedBackend, ContainedEnvironment
from workers.env.judging import bind_judge
from workers.env.metrics import State
from workers.env.plans import next_planned
from workers.env.policy_client import InvalidResponse, PolicyClient
from workers.env.recordings import load_recording
from workers.env.returned_values import printable_text
from workers.env.screen_compression import compress_screen
from workers.env.take_overs import TakeOvers

log = structlog.get_logger()

REQUEST_ATTEMPTS = 3
"""Maximum number of requests for one action; then the episode ends as ``policy_error``."""
LOOP_LIMIT = 4
"""Repeats of an action on an unchanged screen that end an episode as failure (``loop``)."""
WAIT_S = (0.1, 0.3, 0.6)
"""Pauses of the action ``wait`` before each look at the screen; the first look at another screen ends it."""
OBSERVATION_PATIENCE_S = 0.05
"""Time for which an observation may wait to be sent with a request, while its episode waits for an action."""
ERROR_PAUSE_S = 1.0
"""Pause before the second attempt after an error response; it doubles before the third."""

SetState = Callable[[State], None]
NoteReset = Callable[[str], None]
"""Receives the reason of a failed reset, empty after a success; not called for a cancelled one."""


class EpisodeRunner:
    """Runs the episodes of this process."""

    def __init__(
        self,
        config: Config,
        worker_id: str,
        backend: EnvironmentBackend,
        store: AsyncStore,
        publisher: Publisher,
        policy: PolicyClient,
        take_overs: TakeOvers | None = None,
    ) -> None:
        self.config = config
        self.host = worker_id
        self.backend = ContainedBackend(backend)
        self.store = store
        self.publisher = publisher
        self.policy = policy
        self.take_overs = take_overs or TakeOvers()
        self.judge = bind_judge(config)

    def new_episode(self, order: RolloutOrder, max_steps: int) -> Episode:
        """Return the episode of an order before its first screen."""
        limits = EpisodeLimits(max_steps=max_steps, request_attempts=REQUEST_ATTEMPTS, loop_limit=LOOP_LIMIT)
        trajectory_id = new_trajectory_id(now_ms(), os.urandom(10))
        return Episode(
            order=order, trajectory_id=trajectory_id, env_host=self.host, limits=limits, policy=self.config.policy
        )

    async def run(
        self, order: RolloutOrder, task: Task, set_state: SetState, note_reset: NoteReset = lambda _reason: None
    ) -> None:
        """Play an order until its last observation is published; ``set_state`` receives the slot's states.

        When cancelled, the episode ends as ``cancelled`` before CancelledError is raised.
        """
        # An exploration goes beyond what the task itself needs.
        limit = order.max_steps if order.purpose == "explore" else min(order.max_steps, task.max_steps)
        state = self.new_episode(order, limit)
        episode = EpisodeRun(self, state, task, set_state, note_reset)
        trajectory = episode.spans.trajectory
        self.take_overs.begin(state.trajectory_id, order)
        try:
            with structlog.contextvars.bound_contextvars(trajectory=episode.state.trajectory_id), trajectory.use():
                end = await episode.run()
            episode.spans.set_outcome(end)
        finally:
            self.take_overs.end(state.trajectory_id)
            trajectory.end()

    async def reject(self, order: RolloutOrder, reason: str) -> EpisodeEnd:
        """Publish and return the end of an order that is not played, or whose observation cannot be encoded."""
        end = EpisodeEnd(kind="env_error", reward=None, reason=printable_text(reason))
        episode = self.new_episode(order, 0)
        await self.publisher.publish(observations.TOPIC, episode.last_observation(end, now_ms()))
        with structlog.contextvars.bound_contextvars(trajectory=episode.trajectory_id):
            report_end(order, end)
        return end


class EpisodeRun:
    """One episode in flight."""

    def __init__(
        self, runner: EpisodeRunner, state: Episode, task: Task, set_state: SetState, note_reset: NoteReset
    ) -> None:
        self.runner = runner
        self.config = runner.config
        self.state = state
        self.task = task
        self.set_state = set_state
        self.note_reset = note_reset
        self.spans = EpisodeSpans(state.trajectory_id, task.task_id, state.order, runner.host)
        self.screenshot_write: asyncio.Task[None] | None = None
        self.publication: asyncio.Task[None] | None = None
        self.environment = ContainedEnvironment(runner.backend)
        self.demonstrates = False
        self.screen_size: Size = (1, 1)
        self.screen: Screen | None = None
        self.drawn: bytes | None = None
        """Image of the latest screen, as the environment gave it."""
        self.verdict: Verdict | None = None
        self.limit = asyncio.timeout(persons.episode_limit_s(state.order, self.config))
        self.latest_end_s = asyncio.get_running_loop().time() + persons.person_limit_s(self.config)
        self.shown_s = 0.0
        self.was_reset = False
        self.requesting = False

    async def run(self) -> EpisodeEnd:
        """Play, publish an end and close the environment, also after an error.

        A trajectory with an observation that cannot be encoded has no end, like that of a killed worker; the order ends
        as a fault in another trajectory.
        """
        try:
            return await self._to_its_end()
        except Unencodable as error:
            await self.environment.close()
            return await self.runner.reject(self.state.order, str(error))

    async def _to_its_end(self) -> EpisodeEnd:
        """Play within the wall-clock limit, publish the last observation and close the environment."""
        try:
            async with self.limit:
                end = await self._play()
            self.verdict = await self.runner.judge.verdict_on(self.state, end, self.screen)
        except EnvironmentFault as fault:
            end = EpisodeEnd(kind="env_error", reward=None, reason=str(fault))
        except TimeoutError:
            if not self.limit.expired():
                raise
            end = self.state.end_timed_out(self.environment.calling)
        except asyncio.CancelledError:
            await self._close(EpisodeEnd(kind="cancelled", reward=None, reason="the worker was stopped"))
            raise
        if not self.was_reset:
            self.note_reset(end.reason)
        await self._close(end)
        return end

    async def _close(self, end: EpisodeEnd) -> None:
        """Publish the last observation and close the environment, concurrently."""
        await asyncio.gather(
            self._publish(self.state.last_observation(end, now_ms(), self.verdict)), self.environment.close()
        )
        report_end(self.state.order, end)

    def _publish(self, observation: Observation) -> asyncio.Future[None]:
        """Publish after the previous observations and the screenshot's write; the step's span ends then.

        Cancellation of the returned future does not cancel the publication, so a trajectory has no gap.
        """
        with self.spans.current():
            after = self.publication, self.screenshot_write
            self.publication = asyncio.create_task(self._publish_after(observation, *after))
        published = asyncio.shield(self.publication)
        self.spans.end_step(published)
        return published

    async def _publish_after(self, observation: Observation, *first: asyncio.Task[None] | None) -> None:
        for task in first:
            if task is not None:
                await task
        patience_s = OBSERVATION_PATIENCE_S if self.requesting else 0.0
        await self.runner.publisher.publish(observations.TOPIC, observation, patience_s=patience_s)

    async def _play(self) -> EpisodeEnd:
        move: Move = await self._reset()
        while not isinstance(move, Stop):
            match move:
                case RequestAction():
                    move = await self._next_action(move.attempt)
                case Execute():
                    move = await self._execute(move)
                case Evaluate():
                    move = await self._evaluate(move)
        return move.end

    async def _reset(self) -> Move:
        self.set_state("reset")
        started = time.perf_counter()
        await self.environment.open(self.task)
        screen = await self.environment.reset(self.task)
        metrics.reset_ms.record(since_ms(started))
        self.was_reset = True
        self.note_reset("")
        if self.state.order.purpose == "check" and (reward := await self.environment.evaluate()) != 0.0:
            await self._observe(screen, 0.0)
            return Stop(EpisodeEnd(kind="failure", reward=0.0, reason=f"the start is worth {reward:g}, not 0"))
        if persons.plays_oracle(self.state.order, self.config):
            await self.environment.begin_demonstration(self.task)
            self.demonstrates = True
        elif self.state.order.guide is not None:
            answers = await load_recording(self.runner.store, self.state.order.guide)
            self.state = msgspec.structs.replace(self.state, recording=answers)
        return await self._observe(screen, 0.0)

    async def _evaluate(self, move: Evaluate) -> Stop:
        self.set_state("evaluate")
        if move.gave_up:
            return Stop(self.state.end_evaluated(move, await self.environment.give_up()))
        started = time.perf_counter()
        if move.answer:
            await self.environment.answer(move.answer)
        reward = await self.environment.evaluate()
        metrics.evaluate_ms.record(since_ms(started))
        return Stop(self.state.end_evaluated(move, reward))

    async def _observe(self, screen: Screen, execute_ms: float, returned: str = "") -> Move:
        self.set_state("wait")
        self.shown_s = time.perf_counter()
        self.screen_size, self.drawn = (screen.width, screen.height), screen.image
        self.screen = screen = await compress_screen(screen, self.config)
        ref, self.screenshot_write = None, None
        if screen.image is not None:
            ref = ref_of(screen.image, screen.media_type, screen.width, screen.height)
            self.screenshot_write = asyncio.create_task(self._write_screenshot(screen.image, ref))
        self.state = self.state.observe(
            ref, screen.instruction, now_ms(), execute_ms, calls=screen.calls, returned=returned
        )
        return self.state.after_screen(screen.done)

    async def _write_screenshot(self, image: bytes, ref: BlobRef) -> None:
        started = time.perf_counter()
        await self.runner.store.put_blob(image, ref.media_type, ref.width, ref.height)
        metrics.blob_write_ms.record(since_ms(started))

    async def _next_action(self, attempt: int) -> Move:
        """Publish the latest observation while plan, oracle, recording or policy give the next action."""
        self.set_state("wait")
        if (taken := self.runner.take_overs.holder(self.state.trajectory_id)) is not None:
            self.state = self.state.ask_person(taken.feedback_id)
            self.limit.reschedule(self.latest_end_s)
        latest = self.state.latest
        self.state = self.state.mark_published()
        published = None
        if latest is not None:
            published = self._publish(latest)
            self.spans.begin_step(latest.step, latest.asks)
        with self.spans.current():
            move = await self._chosen_action(attempt)
        if published is not None:
            if not published.done():
                self.runner.publisher.hurry()
            await published
        return move

    async def _chosen_action(self, attempt: int) -> Move:
        """Return the move of plan, oracle, person, recording's prefix or policy; a person may take over."""
        sizes = self.screen_size, self._policy_size()
        if self.state.order.purpose == "explore" or self.state.order.plan:
            self.state, move = next_planned(self.state, *sizes)
            return move
        if self.demonstrates:
            return await self._demonstrate()
        if (lease := self.state.order.lease) is not None:
            self.state, move = await persons.next_move(self.runner.policy, self.state, lease, *sizes)
            return move
        taken = self.runner.take_overs.holder(self.state.trajectory_id)
        if taken is not None and self.state.published[-1].asks == taken.feedback_id:
            played = await persons.taken_move(self.runner.policy, self.state, taken, *sizes)
            if played is not None:
                self.state, move = played
                return move
            self.runner.take_overs.release(self.state.trajectory_id)
        recorded = guidance.next_recorded(self.state)
        if recorded is None:
            return await self._request(attempt)
        self.state, move = recorded
        return move

    async def _demonstrate(self) -> Move:
        self.set_state("step")
        action = await self.environment.next_action()
        if action is None:
            return Evaluate(cut=False)
        self.state, move = self.state.demonstrate(rescale(action, self.screen_size, self._policy_size()))
        return move

    async def _request(self, attempt: int) -> Move:
        limits, timeout_s = self.config.policy, self.config.env.request_timeout_s
        turns = prompts.prompt_turns(self.state.observations, limits)
        deadline_ms = now_ms() + int(timeout_s * 1000)
        request = self.state.request(attempt, turns, self.runner.policy.partition, deadline_ms)
        sends = send_attributes(self.config.bus.prefix + action_requests.TOPIC.name)
        attributes = self.spans.attributes | sends | {names.ATTR_REQUEST: request.request_id}
        started = self.shown_s if attempt == 0 else time.perf_counter()
        with ActiveSpan(names.SPAN_REQUEST, attributes=attributes) as span:
            try:
                self.requesting = True
                response = await self.runner.policy.request(request, timeout_s)
            except (TimeoutError, InvalidResponse) as error:
                late = isinstance(error, TimeoutError)
                reason = f"no reply within {timeout_s:g} s" if late else f"invalid reply: {error}"
                span.set_error(f"{request.request_id}: {reason}", type(error).__name__)
                log.debug("no response", reason=reason, attempt=attempt + 1, of=REQUEST_ATTEMPTS)
                return self.state.retry_or_stop(attempt, f"{request.request_id}: {reason}")
            except Unencodable as error:
                span.set_error(str(error), type(error).__name__)
                return Stop(EpisodeEnd(kind="policy_error", reward=None, reason=printable_text(str(error))))
            finally:
                self.requesting = False
        self.state, move = guidance.apply_response(self.state, response, attempt)
        if response.error is None:
            treated = "refused" if isinstance(move, Stop) else "executed"
            for kind in self.state.wrong:
                metrics.answers_wrong.add(1, {"kind": kind, "treated": treated})
            trip_ms = since_ms(started)
            metrics.request_ms.record(trip_ms)
            metrics.overhead_ms.record(max(0.0, trip_ms - response.queue_ms - response.generate_ms))
            return move
        for turn in turns:
            if turn.image is not None:
                self.runner.store.forget_blob(turn.image)
        if isinstance(move, RequestAction):
            await asyncio.sleep(ERROR_PAUSE_S * move.attempt)
        return move

    async def _execute(self, move: Execute) -> Move:
        self.set_state("step")
        started = time.perf_counter()
        pairs, returned = move.all, []
        last = self.state.on_last_step or self.state.ending is not None
        with self.spans.current(), ActiveSpan(names.SPAN_EXECUTE, attributes=self.spans.attributes):
            for number, (action, action_id) in enumerate(pairs, start=1):
                screen = await self._step(action, action_id, last=last and number == len(pairs))
                returned += [screen.returned] if screen.returned else []
                if screen.done:
                    break
        execute_ms = since_ms(started)
        metrics.execute_ms.record(execute_ms)
        metrics.steps.add(1, {"purpose": self.state.order.purpose})
        return await self._observe(screen, execute_ms, "\n".join(returned))

    async def _step(self, action: actions.Action, action_id: str, last: bool) -> Screen:
        """Execute an action given in pixels of the policy's image."""
        require_offered(action, self.state.observations[0].calls)
        if isinstance(action, actions.Wait):
            return await self._wait(action, action_id, last)
        return await self.environment.step(rescale(action, self._policy_size(), self.screen_size), action_id, last)

    async def _wait(self, action: actions.Wait, action_id: str, last: bool) -> Screen:
        """Look at the screen until it changes; the last action of an episode waits the whole time."""
        for pause_s in (sum(WAIT_S),) if last else WAIT_S:
            await asyncio.sleep(pause_s)
            screen = await self.environment.step(action, action_id, last)
            if screen.done or screen.image != self.drawn:
                break
        return screen

    def _policy_size(self) -> Size:
        policy = self.config.policy
        return smart_resize(*self.screen_size, policy.min_pixels, policy.max_pixels)


def report_end(order: RolloutOrder, end: EpisodeEnd) -> None:
    """Count a finished episode, and log one that ended by a fault of the infrastructure."""
    if end.kind in FAULTS:
        log.warning("episode failed", order=order.order_id, task=order.task_id, outcome=end.kind, reason=end.reason)
    page = order.task_id.rpartition("#")[0]
    metrics.episodes.add(1, {"outcome": end.kind, "purpose": order.purpose, "page": page})
