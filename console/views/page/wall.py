"""The wall: the episode and the screen of each slot. Pure.

Events name the host of an episode but not its slot, so each new episode gets the lowest free slot of its host and stays
there. A slot without an episode shows its last one.
"""

from collections import defaultdict
from typing import Literal

import msgspec

from console.runs.run_log import ObservationHeader
from console.runs.run_state import RunState
from console.views.page.episodes import Point, points_of
from console.views.page.natural_order import natural_key
from dart_streams.config import Config
from topics.values import OutcomeKind, Purpose

SlotState = Literal["free", "waits", "acts", "ended"]
"""No episode yet; waiting for the policy; executing an action; the episode has ended."""


class SlotTile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A slot. ``at_ms`` is the time of its screen; ``points`` are the places of the last action.

    ``person`` if a person plays it, who has taken it over.
    """

    slot: str
    state: SlotState
    at_ms: int = 0
    trajectory_id: str = ""
    task_id: str = ""
    purpose: Purpose = "train"
    step: int = 0
    max_steps: int = 0
    screenshot: str = ""
    width: int = 0
    height: int = 0
    action: str = ""
    person: bool = False
    points: tuple[Point, ...] = ()
    outcome: OutcomeKind | None = None
    reward: float | None = None
    reason: str = ""


class SlotGrid:
    """The slots of a run's hosts."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.slots: defaultdict[str, list[ObservationHeader | None]] = defaultdict(lambda: [None] * config.env.slots)
        self.places: dict[str, tuple[str, int]] = {}
        self._of: RunState | None = None

    def update(self, state: RunState) -> list[SlotTile]:
        """Bring the slots up to date with the fold, and return them by host and number."""
        if self._of is not state:
            self._of = state  # another fold: free every slot
            self.places.clear()
            for slots in self.slots.values():
                slots[:] = [None] * len(slots)
        for identity, header in state.newest.items():
            if not self._follow(identity, header):
                self._place(header, self._free(header.env_host, state))
        full: set[str] = set()  # hosts whose slots all have newer episodes than the rest of the loop
        for identity, header in reversed(state.last_screens.items()):
            host = header.env_host
            if not self._follow(identity, header) and host not in full:
                number = self._free(host, state)
                before = self.slots[host][number] if number < len(self.slots[host]) else header
                if before is None or before.at_ms < header.at_ms:
                    self._place(header, number)
                else:
                    full.add(host)
        return [
            self._tile(f"{host}/{number}", header, state)
            for host, slots in sorted(self.slots.items(), key=lambda item: natural_key(item[0]))
            for number, header in enumerate(slots)
        ]

    def _follow(self, identity: str, header: ObservationHeader) -> bool:
        """Show the newest screen of an episode; return whether it has a slot."""
        if identity not in self.places:
            return False
        host, number = self.places[identity]
        self.slots[host][number] = header
        return True

    def _free(self, host: str, state: RunState) -> int:
        """Return a slot without an episode so far, else the one whose episode ended first, else a new one."""
        slots, oldest = self.slots[host], (0, len(self.slots[host]))
        for number, known in enumerate(slots):
            if known is None:
                return number
            if known.trajectory_id not in state.open and (oldest[1] == len(slots) or known.at_ms < oldest[0]):
                oldest = (known.at_ms, number)
        return oldest[1]

    def _place(self, header: ObservationHeader, number: int) -> None:
        slots = self.slots[header.env_host]
        if number == len(slots):
            slots.append(None)
        elif (before := slots[number]) is not None:
            self.places.pop(before.trajectory_id, None)
        slots[number] = header
        self.places[header.trajectory_id] = (header.env_host, number)

    def _tile(self, slot: str, header: ObservationHeader | None, state: RunState) -> SlotTile:
        if header is None:
            return SlotTile(slot=slot, state="free")
        identity, order, shot, taken = header.trajectory_id, header.order, header.screenshot, header.taken
        known = state.orders.get(order.order_id)
        ended = state.trajectories.get(identity)
        outcome = header.end.kind if header.end else ended.outcome if ended else None
        waits = state.answered.get(identity, -1) < header.step
        action = (taken.action if taken else None) or ""
        return SlotTile(
            slot=slot,
            state="ended" if identity not in state.open else "waits" if waits else "acts",
            at_ms=header.at_ms,
            trajectory_id=identity,
            task_id=order.task_id,
            purpose=order.purpose,
            step=header.step,
            max_steps=known[0].max_steps if known else 0,
            screenshot=shot.sha256 if shot else "",
            width=shot.width if shot else 0,
            height=shot.height if shot else 0,
            action=action,
            person=header.asks is not None,
            points=points_of(action, shot, self.config.policy) if shot and action else (),
            outcome=outcome,
            reward=header.end.reward if header.end else ended.reward if ended else None,
            reason=header.end.reason if header.end else "",
        )
