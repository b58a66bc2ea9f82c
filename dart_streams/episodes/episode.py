"""The state of an episode and its next move: a fold of screens and responses. Pure.

The action after observation ``n`` is action ``n`` of the trajectory, requested under the ids
``<trajectory>/<n>/<attempt>`` and recorded in observation ``n + 1``. An episode that ends with an action that is not
executed (``finished``, ``call_user``, unparsable) has an observation of it with the previous screen; one that ends
without a response has a last observation without ``taken``.
"""

import uuid
from collections.abc import Sequence

import msgspec

from dart_streams import actions
from dart_streams.actions.dialects import ParsedAnswer, UnsupportedAction
from dart_streams.actions.offered import cut_returned
from dart_streams.actions.recorded import RecordedAnswer
from dart_streams.actions.sequence import format_all
from dart_streams.config import Policy
from dart_streams.episodes import prompts
from dart_streams.errors import MAX_REASON
from topics.action_requests import ActionRequest
from topics.actions import ActionResponse
from topics.observations import EpisodeEnd, ExecutedAction, Observation
from topics.outcomes import reconcile_outcome
from topics.rollout_orders import RolloutOrder
from topics.values import BlobRef, MessagePart, OfferedCall, OutcomeKind, Verdict


class EpisodeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on actions, attempts per request, and repeats of an action that changes nothing."""

    max_steps: int
    request_attempts: int
    loop_limit: int


class RequestAction(msgspec.Struct, frozen=True):
    """Request the next action from the policy, as attempt ``attempt`` (from 0)."""

    attempt: int


class Execute(msgspec.Struct, frozen=True):
    """Execute ``action``, in pixels of the policy's image, and then the ``others`` of the same answer.

    Each has its own id; none is executed after the environment is done.
    """

    action: actions.Action
    action_id: str
    others: tuple[actions.Action, ...] = ()

    @property
    def all(self) -> list[tuple[actions.Action, str]]:
        """All actions in order, with their ids."""
        further = [(action, f"{self.action_id}/{number}") for number, action in enumerate(self.others, start=1)]
        return [(self.action, self.action_id), *further]


class Evaluate(msgspec.Struct, frozen=True):
    """Evaluate the present state; ``cut`` at the step limit, ``gave_up`` after ``call_user``, ``looped`` in a loop.

    ``answer`` is the text of ``finished``, the policy's answer to a task that asks for one.
    """

    cut: bool
    gave_up: bool = False
    looped: bool = False
    answer: str = ""


class Stop(msgspec.Struct, frozen=True):
    """End the episode."""

    end: EpisodeEnd


Move = RequestAction | Execute | Evaluate | Stop
ENDING = (actions.Finished, actions.CallUser)
"""Actions that end the episode instead of being executed."""


def evaluation_of(action: actions.Action) -> Evaluate:
    """Return the evaluation after an action that ends the episode."""
    if isinstance(action, actions.Finished):
        return Evaluate(cut=False, answer=action.content)
    return Evaluate(cut=False, gave_up=True)


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """An episode so far.

    ``latest`` is the newest observation, published once it is known whether it is the last; ``published`` are the
    earlier ones. ``pending`` is an action without a screen yet, ``executing`` whether the environment has it.
    ``ending`` follows the executed actions of an answer that ends the episode. ``wrong`` lists the issues of the last
    answer, by kind. ``recording`` has the recorded answers of the order's guide, and ``patches`` counts those that were
    executed in place of the policy's (:mod:`dart_streams.episodes.guidance`).
    """

    order: RolloutOrder
    trajectory_id: str
    env_host: str
    limits: EpisodeLimits
    policy: Policy = Policy()
    published: tuple[Observation, ...] = ()
    latest: Observation | None = None
    pending: ExecutedAction | None = None
    executing: bool = False
    ending: Evaluate | None = None
    wrong: tuple[str, ...] = ()
    repeats: int = 0
    recording: tuple[RecordedAnswer, ...] = ()
    patches: int = 0

    @property
    def step(self) -> int:
        """The step of the latest observation, or of the next one."""
        return len(self.published)

    @property
    def observations(self) -> tuple[Observation, ...]:
        """All observations so far."""
        return self.published if self.latest is None else (*self.published, self.latest)

    @property
    def on_last_step(self) -> bool:
        """Whether the step limit ends the episode after the pending action."""
        return self.step >= self.limits.max_steps

    def observe(
        self,
        screenshot: BlobRef | None,
        instruction: str,
        at_ms: int,
        execute_ms: float = 0.0,
        calls: Sequence[OfferedCall] = (),
        returned: str = "",
    ) -> "Episode":
        """Apply a new screen: the first one after reset, or the result of the pending action.

        ``screenshot`` may be None after the last action (``last_screen`` of the backend). ``calls`` are those that the
        environment offers from the first screen on, and ``returned`` is the text of the pending action's calls.
        """
        taken = msgspec.structs.replace(self.pending, execute_ms=execute_ms) if self.pending else None
        latest = self._observation(screenshot, instruction, taken, at_ms)
        if self.published:
            latest = msgspec.structs.replace(latest, returned=cut_returned(returned))
        else:
            latest = msgspec.structs.replace(latest, calls=list(calls))
        return msgspec.structs.replace(
            self, latest=latest, pending=None, executing=False, repeats=self._repeats_with(latest)
        )

    def after_screen(self, done: bool) -> RequestAction | Evaluate | Stop:
        """Return the move after the latest screen; ``done`` if the environment accepts no further action."""
        if done:
            return Evaluate(cut=False)
        if self.ending is not None:
            return self.ending
        if self.repeats >= self.limits.loop_limit:
            return Evaluate(cut=False, looped=True)
        if self.on_last_step:
            return Evaluate(cut=True)
        return RequestAction(attempt=0)

    def mark_published(self) -> "Episode":
        """Return the episode with its latest observation published."""
        return msgspec.structs.replace(self, published=self.observations, latest=None)

    def request_id(self, attempt: int) -> str:
        """Return the id of an attempt to request the next action; call it after :meth:`mark_published`."""
        return f"{self.trajectory_id}/{self.step - 1}/{attempt}"

    @property
    def person_id(self) -> str:
        """The id of the next action of a person who has taken the rollout over; no reply of a policy has such an id."""
        return f"{self.trajectory_id}/{self.step - 1}/person"

    def ask_person(self, take_over: str) -> "Episode":
        """Return the episode whose latest observation, not published yet, asks the person of a take-over."""
        latest = self.latest and msgspec.structs.replace(self.latest, asks=take_over)
        return msgspec.structs.replace(self, latest=latest)

    def request(self, attempt: int, turns: list[MessagePart], reply_partition: int, deadline_ms: int) -> ActionRequest:
        """Return the request for the next action with the prompt ``turns``; call it after :meth:`mark_published`."""
        return ActionRequest(
            request_id=self.request_id(attempt),
            trajectory_id=self.trajectory_id,
            step=self.step - 1,
            turns=turns,
            sampling=self.order.sampling,
            reply_partition=reply_partition,
            deadline_ms=deadline_ms,
        )

    def apply_response(self, response: ActionResponse, attempt: int) -> "tuple[Episode, Move]":
        """Apply the response to an attempt: execute its action, end the episode, or retry after an error."""
        if response.error is not None:
            return self, self.retry_or_stop(attempt, response.error)
        try:
            view = prompts.view_of(self.published, self.policy)
            reading = self.policy.dialect.build().read(response.text, view, self.published[0].calls)
        except actions.Unparsable as error:
            stop = Stop(EpisodeEnd(kind="invalid_action", reward=0.0, reason=str(error)))
            pending = executed_action(response, None)
            return msgspec.structs.replace(self, pending=pending, wrong=(error.kind,)), stop
        return self.apply_reading(reading, response)

    def apply_reading(self, reading: ParsedAnswer, response: ActionResponse) -> "tuple[Episode, Move]":
        """Apply the actions of an answer, up to the first that ends the episode."""
        ends = [isinstance(action, ENDING) for action in reading.actions]
        taken = reading.actions[: ends.index(True) + 1] if any(ends) else reading.actions
        read = msgspec.structs.replace(self, wrong=tuple(wrong.kind for wrong in reading.wrong))
        return read.apply_actions(taken, executed_action(response, format_all(taken)))

    def apply_actions(self, answered: Sequence[actions.Action], taken: ExecutedAction) -> "tuple[Episode, Move]":
        """Apply the actions of one answer, of which only the last may end the episode."""
        first, *others = answered
        state, move = self.apply_action(first, taken)
        if not others or not isinstance(move, Execute):
            return state, move
        if isinstance(others[-1], ENDING):
            state = msgspec.structs.replace(state, ending=evaluation_of(others.pop()))
        return state, msgspec.structs.replace(move, others=tuple(others))

    def demonstrate(self, action: actions.Action, take_over: str | None = None) -> "tuple[Episode, Move]":
        """Apply the next action of an oracle or a person, in pixels of the policy's image, like a policy's response.

        ``take_over`` is that of a person who acts in place of the policy.
        """
        try:
            text = self.policy.dialect.build().write(action, prompts.view_of(self.published, self.policy))
        except UnsupportedAction as error:
            reason = f"policy.dialect cannot demonstrate this task: {error}"
            return self, Stop(EpisodeEnd(kind="env_error", reward=None, reason=reason))
        identity = self.request_id(0) if take_over is None else self.person_id
        taken = unsampled_action(identity, text, actions.format(action), take_over=take_over)
        return self.apply_action(action, taken)

    def apply_action(self, action: actions.Action, taken: ExecutedAction) -> "tuple[Episode, Move]":
        """Apply an action: execute it, or end the episode."""
        acting = msgspec.structs.replace(self, pending=taken)
        if isinstance(action, ENDING):
            return acting, evaluation_of(action)
        return msgspec.structs.replace(acting, executing=True), Execute(action, taken.request_id)

    def retry_or_stop(self, attempt: int, reason: str) -> RequestAction | Stop:
        """Return the move after an attempt without a usable response."""
        if attempt + 1 < self.limits.request_attempts:
            return RequestAction(attempt + 1)
        return Stop(EpisodeEnd(kind="policy_error", reward=None, reason=f"{attempt + 1} attempts, the last: {reason}"))

    def end_evaluated(self, evaluated: Evaluate, reward: float) -> EpisodeEnd:
        """Return the end of an evaluated episode; a solved one succeeds even at the step limit."""
        kind = reconcile_outcome("truncated" if evaluated.cut else "failure", reward)
        failed = "call_user" if evaluated.gave_up else "loop" if evaluated.looped else ""
        reason = {"truncated": "step limit", "failure": failed}.get(kind, "")
        return EpisodeEnd(kind=kind, reward=reward, reason=reason)

    def end_timed_out(self, calling: str = "") -> EpisodeEnd:
        """Return the end of an episode past its wall-clock limit: a fault without a reward.

        ``calling`` is the environment's pending call, if there is one. Slowness says nothing about the actions, so it
        is not trained on.
        """
        kind: OutcomeKind = "env_error"
        if calling:
            reason = f"waited for the environment's {calling}()"
        elif self.published and self.latest is None and self.pending is None:
            kind, reason = "policy_error", "waited for an action"
        else:
            reason = "waited for the environment" if self.observations else "no first screen in time"
        return EpisodeEnd(kind=kind, reward=None, reason=f"straggler: {reason}")

    def last_observation(self, end: EpisodeEnd, at_ms: int, verdict: Verdict | None = None) -> Observation:
        """Return the last observation, with ``end`` and the verdict of a judge."""
        last = self.latest
        if last is None:
            unchanged = self.published and not self.executing
            screenshot = self.published[-1].screenshot if unchanged else None
            last = self._observation(screenshot, "", self.pending, at_ms)
        end = msgspec.structs.replace(end, reason=end.reason[:MAX_REASON])
        return msgspec.structs.replace(last, end=end, verdict=verdict)

    def _observation(
        self, screenshot: BlobRef | None, instruction: str, taken: ExecutedAction | None, at_ms: int
    ) -> Observation:
        """Return the next observation; the instruction is the first one's."""
        return Observation(
            trajectory_id=self.trajectory_id,
            order=self.order,
            step=self.step,
            instruction=self.published[0].instruction if self.published else instruction,
            screenshot=screenshot,
            taken=taken,
            end=None,
            env_host=self.env_host,
            at_ms=at_ms,
        )

    def _repeats_with(self, latest: Observation) -> int:
        """Return the consecutive times that the same action left the screen, and what it returned, unchanged."""
        if not self.published or latest.taken is None or latest.screenshot != self.published[-1].screenshot:
            return 0
        before, returned = self.published[-1].taken, self.published[-1].returned
        same = before is not None and (before.action, returned) == (latest.taken.action, latest.returned)
        return (self.repeats if same else 0) + 1


def executed_action(response: ActionResponse, action: str | None) -> ExecutedAction:
    """Return a response as recorded; ``action`` is None if it did not parse."""
    return ExecutedAction(
        request_id=response.request_id,
        text=response.text,
        action=action,
        tokens=response.tokens,
        logprobs=response.logprobs,
        entropies=response.entropies,
        versions=response.versions,
        prompt_sha=response.prompt_sha,
        queue_ms=response.queue_ms,
        generate_ms=response.generate_ms,
        execute_ms=0.0,
    )


def unsampled_action(
    request_id: str, text: str, action: str, recorded_from: str | None = None, take_over: str | None = None
) -> ExecutedAction:
    """Return an answer that no model generated, as recorded."""
    return ExecutedAction(
        request_id=request_id,
        text=text,
        action=action,
        tokens=[],
        logprobs=[],
        entropies=[],
        versions=[],
        prompt_sha="",
        queue_ms=0.0,
        generate_ms=0.0,
        execute_ms=0.0,
        recorded_from=recorded_from,
        take_over=take_over,
    )


def new_trajectory_id(at_ms: int, randomness: bytes) -> str:
    """Return the UUIDv7 (RFC 9562) of an epoch time in ms and 10 random bytes: ids sort by time."""
    fields = at_ms.to_bytes(6) + randomness
    value = int.from_bytes(fields)
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return str(uuid.UUID(int=value))
