"""An episode as its player follows it: the fold of its observations, and what their page shows. Pure."""

import itertools
from typing import Any, Literal

import msgspec

from dart_streams import actions
from dart_streams.config import Policy
from dart_streams.screens import smart_resize
from topics.observations import Observation
from topics.rollout_orders import RolloutOrder
from topics.trajectories import Trajectory
from topics.values import BlobRef
from workers.env.environment import rescale

Stage = Literal["idle", "ordered", "policy", "turn", "acting", "ended"]
"""What happens now; with ``policy`` a rollout's policy acts, or another person."""


class PersonEpisode(msgspec.Struct, frozen=True, kw_only=True):
    """The order that a person plays, its observations so far, and the request whose action they have ``sent``.

    ``recorded`` once the recorder has announced the trajectory.

    An order without a lease is a rollout of the policy, which the person takes over by the feedback ``take_over``. That
    is empty before they ask and after they gave it back. It is ``lost`` if its environment worker is.
    """

    order: RolloutOrder
    shown: tuple[Observation, ...] = ()
    sent: str = ""
    recorded: bool = False
    take_over: str = ""
    lost: bool = False

    @property
    def is_rollout(self) -> bool:
        """Whether the policy plays it while the person does not."""
        return self.order.lease is None

    @property
    def asked(self) -> str:
        """The take-over whose person is asked for the next action; empty if it is the policy."""
        return (self.shown[-1].asks or "") if self.shown else ""

    @property
    def is_held(self) -> bool:
        """Whether another person plays it."""
        return self.asked not in ("", self.take_over) and self.sent != self.request_id

    @property
    def is_asking(self) -> bool:
        """Whether the person has asked for it, and waits for the next step."""
        return bool(self.take_over) and self.asked != self.take_over

    @property
    def trajectory_id(self) -> str:
        """The trajectory's id; empty before its first screen."""
        return self.shown[0].trajectory_id if self.shown else ""

    @property
    def request_id(self) -> str:
        """The id of the next action, as the environment worker expects it; empty before the first screen."""
        attempt = "person" if self.is_rollout else "0"
        return f"{self.trajectory_id}/{len(self.shown) - 1}/{attempt}" if self.shown else ""

    @property
    def ended(self) -> bool:
        """Whether the episode has ended."""
        return self.lost or (bool(self.shown) and self.shown[-1].end is not None)

    @property
    def stage(self) -> Stage:
        """What happens now."""
        if self.ended:
            return "ended"
        if not self.shown:
            return "ordered"
        if self.is_rollout and not (self.take_over and self.asked == self.take_over):
            return "policy"
        return "acting" if self.sent == self.request_id else "turn"

    @property
    def screen(self) -> BlobRef | None:
        """The newest screenshot."""
        return next((one.screenshot for one in reversed(self.shown) if one.screenshot is not None), None)

    def observe(self, observation: Observation) -> "PersonEpisode":
        """Apply an observation; those of other orders, and repeated ones, change nothing.

        A newer trajectory replaces an older one: its environment worker was lost, and another plays the order.
        """
        if observation.order.order_id != self.order.order_id:
            return self
        if observation.trajectory_id != self.trajectory_id:
            begins = observation.step == 0 and observation.trajectory_id > self.trajectory_id
            if begins and self.is_rollout and self.shown:
                return self if self.ended else msgspec.structs.replace(self, lost=True)
            return PersonEpisode(order=self.order, shown=(observation,)) if begins else self
        if observation.step != len(self.shown):
            return self
        # Whoever was asked before, or instead, has the rollout: the person may ask again.
        over = self.take_over in ("", self.asked) or observation.asks is not None
        kept = "" if over and observation.asks != self.take_over else self.take_over
        return msgspec.structs.replace(self, shown=(*self.shown, observation), take_over=kept)

    def announce(self, trajectory: Trajectory) -> "PersonEpisode":
        """Apply an announcement of the recorder."""
        if trajectory.trajectory_id != self.trajectory_id:
            return self
        return msgspec.structs.replace(self, recorded=True)

    def send(self) -> "PersonEpisode":
        """Return the episode with an action sent for the shown screen."""
        return msgspec.structs.replace(self, sent=self.request_id)

    def ask(self, take_over: str) -> "PersonEpisode":
        """Return the rollout after its person has asked for it."""
        return msgspec.structs.replace(self, take_over=take_over)

    def give_back(self) -> "PersonEpisode":
        """Return the rollout after its person has left the shown screen, and what follows, to the policy."""
        return msgspec.structs.replace(self, take_over="", sent=self.request_id)


def page_view(task_id: str, episode: PersonEpisode | None, policy: Policy) -> dict[str, Any]:
    """Return what the page shows of an episode, or of none yet; actions have the places where the person acted."""
    if episode is None:
        return {"stage": "idle", "task": task_id}
    screen, end = episode.screen, episode.shown[-1].end if episode.shown else None
    pairs = itertools.pairwise(episode.shown)
    taken = [shown_action(one.taken.action or "", before.screenshot, policy) for before, one in pairs if one.taken]
    return {
        "stage": episode.stage,
        "task": task_id,
        "instruction": episode.shown[0].instruction if episode.shown else "",
        "request": episode.request_id,
        "trajectory": episode.trajectory_id,
        "max_steps": episode.order.max_steps,
        "taken": taken,
        "screen": {"sha256": screen.sha256, "width": screen.width, "height": screen.height} if screen else None,
        "end": {"kind": end.kind, "reward": end.reward, "reason": end.reason} if end else None,
        "recorded": episode.recorded,
        **(rollout_view(episode) if episode.is_rollout else {}),
    }


def rollout_view(episode: PersonEpisode) -> dict[str, Any]:
    """Return what the page shows of a rollout beside that: who plays it, and who took each action."""
    people = [one.taken.take_over is not None for one in episode.shown[1:] if one.taken]
    return {"held": episode.is_held, "asking": episode.is_asking, "lost": episode.lost, "people": people}


def shown_action(text: str, screen: BlobRef | None, policy: Policy) -> str:
    """Return a recorded action, whose places are pixels of the policy's image, in pixels of the screen."""
    if screen is None:
        return text.removeprefix("Action: ")
    size = screen.width, screen.height
    image = smart_resize(*size, policy.min_pixels, policy.max_pixels)
    return actions.call(rescale(actions.parse(text), image, size))
