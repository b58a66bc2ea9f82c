"""What an episode does next: a value that folds screens and answers. Pure, without clock, bus or environment.

The action that follows observation ``n`` is action ``n`` of the trajectory, asked for under request ids
``<trajectory>/<n>/<attempt>``; observation ``n + 1`` tells it. An episode that ends by an answer that is not executed
(``finished``, ``call_user``, an unparsable one) gets an observation for it that shows the old screen; one that ends
while no answer is there gets a last observation without ``taken``.
"""

import msgspec

from dart_streams import actions, prompts
from topics.action_requests import ActionRequest
from topics.actions import ActionResponse as Reply
from topics.observations import EpisodeEnd, ExecutedAction, Observation
from topics.rollout_orders import RolloutOrder
from topics.values import BlobRef, MessagePart

SUCCESS = 0.999
"""From this reward on an episode is a success; partial credit below it is kept, as a failure."""


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What bounds an episode: actions, attempts at one request, repeats of an action that changes nothing."""

    max_steps: int
    request_attempts: int
    loop_limit: int


class Ask(msgspec.Struct, frozen=True):
    """Ask the policy for the next action, for the ``attempt``-th time (from 0)."""

    attempt: int


class Act(msgspec.Struct, frozen=True):
    """Execute ``action``, given in pixels of the policy's image."""

    action: actions.Action
    action_id: str


class Evaluate(msgspec.Struct, frozen=True):
    """Evaluate the present state; ``cut`` says that the step limit ended the episode."""

    cut: bool


class Stop(msgspec.Struct, frozen=True):
    """The episode is over."""

    end: EpisodeEnd


Move = Ask | Act | Evaluate | Stop


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """An episode so far.

    ``seen`` are the observations already told; ``fresh`` is the newest, told once it is known whether it is the last;
    ``doing`` is an answer whose screen is not there yet, ``executed`` whether the environment was told to do it.
    """

    order: RolloutOrder
    trajectory_id: str
    env_host: str
    rules: Rules
    seen: tuple[Observation, ...] = ()
    fresh: Observation | None = None
    doing: ExecutedAction | None = None
    executed: bool = False
    repeats: int = 0

    @property
    def step(self) -> int:
        """The step of the observation that comes next (or that is fresh)."""
        return len(self.seen)

    @property
    def told(self) -> tuple[Observation, ...]:
        """All observations, the fresh one included."""
        return self.seen if self.fresh is None else (*self.seen, self.fresh)

    @property
    def on_last_step(self) -> bool:
        """Whether the step limit ends the episode with the action under way."""
        return self.step >= self.rules.max_steps

    def show(self, screenshot: BlobRef | None, instruction: str, at_ms: int, execute_ms: float = 0.0) -> "Episode":
        """Fold a new screen: the first one after reset, or what the answer under way led to.

        ``screenshot`` may be null after the last action (``last_screen`` of the backend).
        """
        taken = msgspec.structs.replace(self.doing, execute_ms=execute_ms) if self.doing else None
        if self.seen:
            instruction = self.seen[0].instruction
        fresh = self._observation(screenshot, instruction, taken, None, at_ms)
        return msgspec.structs.replace(self, fresh=fresh, doing=None, executed=False, repeats=self._repeats_with(fresh))

    def after_screen(self, done: bool) -> Ask | Evaluate | Stop:
        """Return what follows the fresh screen; ``done`` says that the environment accepts no further action."""
        if done:
            return Evaluate(cut=False)
        if self.repeats >= self.rules.loop_limit:
            return Stop(EpisodeEnd(kind="failure", reward=0.0, reason="loop"))
        if self.on_last_step:
            return Evaluate(cut=True)
        return Ask(attempt=0)

    def settle(self) -> "Episode":
        """The fresh observation is not the last: it joins those told."""
        return msgspec.structs.replace(self, seen=self.told, fresh=None)

    def request_id(self, attempt: int) -> str:
        """Return the id under which the next action is asked for; call it after :meth:`settle`."""
        return f"{self.trajectory_id}/{self.step - 1}/{attempt}"

    def request(self, attempt: int, turns: list[MessagePart], reply_partition: int, deadline_ms: int) -> ActionRequest:
        """Return the request for the next action; call it after :meth:`settle`."""
        return ActionRequest(
            request_id=self.request_id(attempt),
            trajectory_id=self.trajectory_id,
            step=self.step - 1,
            turns=turns,
            sampling=self.order.sampling,
            reply_partition=reply_partition,
            deadline_ms=deadline_ms,
        )

    def turns(self, max_images: int, max_texts: int) -> list[MessagePart]:
        """Return the prompt for the next action."""
        return prompts.turns(self.told, max_images, max_texts)

    def hear(self, reply: Reply, attempt: int) -> "tuple[Episode, Move]":
        """Fold an answer to attempt ``attempt``: act on it, end by it, or ask again if it is an error."""
        if reply.error is not None:
            return self, self.after_silence(attempt, reply.error)
        try:
            action = actions.parse(reply.text)
        except actions.Unparsable as error:
            stop = Stop(EpisodeEnd(kind="invalid_action", reward=0.0, reason=str(error)))
            return msgspec.structs.replace(self, doing=taken_of(reply, None)), stop
        return self.do(action, taken_of(reply, actions.format(action)))

    def demonstrate(self, action: actions.Action) -> "tuple[Episode, Move]":
        """Fold the oracle's next action, given in pixels of the policy's image, as if the policy had answered it."""
        text = actions.format(action)
        taken = ExecutedAction(
            request_id=self.request_id(0),
            text=text,
            action=text,
            tokens=[],
            logprobs=[],
            entropies=[],
            versions=[],
            prompt_sha="",
            queue_ms=0.0,
            generate_ms=0.0,
            execute_ms=0.0,
        )
        return self.do(action, taken)

    def do(self, action: actions.Action, taken: ExecutedAction) -> "tuple[Episode, Move]":
        """Fold an answer that parsed: most are executed, some end the episode."""
        doing = msgspec.structs.replace(self, doing=taken)
        if isinstance(action, actions.Finished):
            return doing, Evaluate(cut=False)
        if isinstance(action, actions.CallUser):
            return doing, Stop(EpisodeEnd(kind="failure", reward=0.0, reason="call_user"))
        return msgspec.structs.replace(doing, executed=True), Act(action, taken.request_id)

    def after_silence(self, attempt: int, why: str) -> Ask | Stop:
        """Return what follows an attempt without a usable answer."""
        if attempt + 1 < self.rules.request_attempts:
            return Ask(attempt + 1)
        return Stop(EpisodeEnd(kind="policy_error", reward=None, reason=f"{attempt + 1} attempts, the last: {why}"))

    def judged(self, cut: bool, reward: float) -> EpisodeEnd:
        """Return the end that an evaluation makes."""
        if cut:
            return EpisodeEnd(kind="truncated", reward=reward, reason="step limit")
        return EpisodeEnd(kind="success" if reward >= SUCCESS else "failure", reward=reward)

    def straggled(self) -> EpisodeEnd:
        """Return the end of an episode past its wall-clock bound: one that never began is the environment's fault."""
        if not self.told:
            return EpisodeEnd(kind="env_error", reward=None, reason="straggler: no first screen in time")
        return EpisodeEnd(kind="truncated", reward=0.0, reason="straggler")

    def close(self, end: EpisodeEnd, at_ms: int) -> Observation:
        """Return the last observation, with ``end``."""
        if self.fresh is not None:
            return msgspec.structs.replace(self.fresh, end=end)
        known = self.seen and not self.executed
        screenshot = self.seen[-1].screenshot if known else None
        instruction = self.seen[0].instruction if self.seen else ""
        return self._observation(screenshot, instruction, self.doing, end, at_ms)

    def _observation(
        self,
        screenshot: BlobRef | None,
        instruction: str,
        taken: ExecutedAction | None,
        end: EpisodeEnd | None,
        at_ms: int,
    ) -> Observation:
        return Observation(
            trajectory_id=self.trajectory_id,
            order=self.order,
            step=self.step,
            instruction=instruction,
            screenshot=screenshot,
            taken=taken,
            end=end,
            env_host=self.env_host,
            at_ms=at_ms,
        )

    def _repeats_with(self, fresh: Observation) -> int:
        """Return how many times in a row the newest action has left the same screen as it was."""
        if not self.seen or fresh.taken is None or fresh.screenshot != self.seen[-1].screenshot:
            return 0
        before = self.seen[-1].taken
        same = before is not None and before.action == fresh.taken.action
        return (self.repeats if same else 0) + 1


def taken_of(reply: Reply, action: str | None) -> ExecutedAction:
    """Return what an answer leaves in the observation it leads to; ``action`` is null if it did not parse."""
    return ExecutedAction(
        request_id=reply.request_id,
        text=reply.text,
        action=action,
        tokens=reply.tokens,
        logprobs=reply.logprobs,
        entropies=reply.entropies,
        versions=reply.versions,
        prompt_sha=reply.prompt_sha,
        queue_ms=reply.queue_ms,
        generate_ms=reply.generate_ms,
        execute_ms=0.0,
    )
