"""Says of an id from which nothing was made what it is, and what decided that. Pure.

A group that was dropped or is under way, an order, a request whose answer was not used, a proposed task, a dead letter.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from console.lineage.lineage import Lineage, Node
from console.lineage.traces import RecordedSpan
from console.repair.dead_letters import DeadLetter
from console.runs import task_history
from console.runs.run_log import RecordMetadata
from console.runs.task_history import UNDER_WAY, TaskHistory
from console.views.page.training import GroupMember, view_group
from dart_streams.config import Config
from dart_streams.curation import groups
from dart_streams.telemetry import names
from topics import task_verdicts, tasks

READ = (*task_history.READ, tasks.TOPIC, task_verdicts.TOPIC)
"""What is read beside the topics of a lineage."""
ORDERED_BY = {
    "train": "the dispatch agent, within its group",
    "eval": "the run's evaluation of held-out tasks",
    "demonstration": "the run or a person, as a demonstration of the task",
    "explore": "a recipe, as an exploration",
    "check": "the check of a proposed task",
}
"""Who orders a rollout, by its purpose."""


class Explanations:
    """Explains ids by a run's log (read with :data:`READ`) and its spans.

    ``lost`` are the unfinished orders that nobody will finish, None if that is not known. ``letters`` finds the dead
    letters about an id, and is asked last.
    """

    def __init__(
        self,
        lineage: Lineage,
        config: Config,
        letters: Callable[[str], Sequence[DeadLetter]] = lambda _: (),
        lost: Callable[[], Sequence[str] | None] = lambda: None,
    ) -> None:
        self.lineage = lineage
        self.state = lineage.state
        self.config = config
        self.letters = letters
        self.lost = lost

    def of(self, identity: str) -> Node:
        """Return the tree of an id, or what explains that it has none; raise UserError if the run never had it."""
        node = self.lineage.find(identity)
        if node is None and identity in self.state.orders_of:
            node = self.group(identity)
        elif node is None and identity in self.state.orders:
            node = self.order(identity)
        elif node is None and (identity in self.state.verdicts or identity in self.state.proposed):
            node = self.proposal(identity)
        elif node is None:
            node = self.request(identity) or self.dead_letter(identity)
        if node is None:
            raise self.lineage.refusal(identity)
        if node.kind == "trajectory" and (group := self.uncurated_group(identity)):
            node.went_into.append(msgspec.structs.replace(self.group(group), made_of=[]))
        return node

    def uncurated_group(self, trajectory_id: str) -> str:
        """Return the group that a trajectory was ordered for, empty if the group was curated."""
        finished = self.state.trajectories.get(trajectory_id)
        group_id = finished.group_id if finished else ""
        return "" if group_id in self.state.groups or group_id not in self.state.orders_of else group_id

    def group(self, group_id: str) -> Node:
        """Return a group that was not curated: its fate, what decided it, and its rollouts with their rewards."""
        seen = view_group(group_id, self.state, self.config)
        history = TaskHistory(self.config, self.state, seen.task_id).groups[seen.task_id].get(group_id)
        fields: dict[str, Any] = {"task": seen.task_id, "fate": seen.fate or UNDER_WAY, "size": seen.why}
        if seen.waiting and not (history and history.decided_by):
            fields["waiting"] = seen.waiting
        if history and history.decided_by:
            decided = {"agent": groups.NAME, "trajectory": history.decided_by}
            fields["decided_by"] = decided | place_fields(self.state.places.get(history.decided_by))
        return Node(kind="group", id=group_id, fields=fields, made_of=[self.member(one) for one in seen.members])

    def member(self, member: GroupMember) -> Node:
        """Return a rollout of a group, finished or not."""
        fields: dict[str, Any] = {"state": member.state, "sample": member.sample, "attempt": member.attempt}
        if member.finished is not None:
            fields |= {"reward": member.finished.reward, "order": member.finished.order_id}
            fields |= {"left_out": member.finished.untrainable} if member.finished.untrainable else {}
            fields |= place_fields(self.state.places.get(member.trajectory_id))
        return Node(kind="trajectory", id=member.trajectory_id or "not begun", fields=fields)

    def order(self, order_id: str) -> Node:
        """Return an order with what became of it: finished, running, not begun, or lost."""
        order, place = self.state.orders[order_id]
        finished = self.state.finished.get(order_id)
        running = next((key for key, seen in self.state.open.items() if seen.order.order_id == order_id), "")
        if finished is not None:
            became = f"finished: {finished.outcome}"
        elif order_id in (self.lost() or ()):
            became = "lost: it is committed, and its end is not on the log"
        elif order_id in self.state.unrecorded:
            became = "ended: the recorder has not announced its trajectory yet"
        elif running:
            became = f"running: step {self.state.newest_step.get(running, 0)}"
        else:
            became = "not begun: no environment has published a screen of it"
        fields = {"task": order.task_id, "became": became, "ordered_by": ORDERED_BY[order.purpose]}
        fields |= place_fields(place)
        identity = finished.trajectory_id if finished else running
        went_into = [self.lineage.trajectory(identity, up=True)] if identity else []
        made_of = [self.group(order.group_id)] if order.purpose == "train" and finished is None else []
        return Node(kind="order", id=order_id, fields=fields, made_of=made_of, went_into=went_into)

    def proposal(self, task_id: str) -> Node:
        """Return a proposed task with its verdict, and the trajectory of its check."""
        verdict, proposed = self.state.verdicts.get(task_id), self.state.proposed.get(task_id)
        fields: dict[str, Any] = {"became": "waits for its check"}
        if verdict is not None:
            fields = {
                "became": "accepted" if verdict.accepted else f"refused: {verdict.reason}",
                "maker": verdict.maker,
            }
            fields |= {"decided_by": {"agent": "proposals", "topic": task_verdicts.TOPIC.name}}
        elif proposed is not None:
            fields["maker"] = proposed.maker
        check = verdict.trajectory_id if verdict else ""
        made_of = [self.lineage.trajectory(check)] if check in self.state.trajectories else []
        return Node(kind="proposed task", id=task_id, fields=fields, made_of=made_of)

    def request(self, identity: str) -> Node | None:
        """Return a request whose answer was not used: another attempt's was, or the episode ended without an action."""
        parts = re.fullmatch(r"(.+)/(\d+)/(\d+)", identity)
        if parts is None or parts[1] not in self.state.observations:
            return None
        trajectory_id, step, attempt = parts[1], int(parts[2]), int(parts[3])
        taken, last = self.lineage.action(trajectory_id, step), max(self.state.observations[trajectory_id])
        seen = self.state.observation(trajectory_id, last)
        end = seen.end if seen is not None else None
        failure = next((span.failure for span in self.spans_of(identity) if span.failure), "")
        fields: dict[str, Any] = {}
        if taken is not None and is_before(attempt, taken.request_id):
            fields["became"] = f"not used: the action is the answer to {taken.request_id}"
        elif taken is None and end is None and step == last:
            fields["became"] = "not answered yet: the episode is running"
        elif taken is None and end is not None and step in (last - 1, last) and attempt < attempts_in(end.reason):
            fields |= {"became": "not used: the episode ended here", "outcome": end.kind, "reason": end.reason}
            fields |= place_fields(self.state.observations[trajectory_id][last].metadata)
        else:
            return None
        fields |= {"failure": failure} if failure else {}
        return Node(kind="request", id=identity, fields=fields, went_into=[Node(kind="trajectory", id=trajectory_id)])

    def spans_of(self, request_id: str) -> list[RecordedSpan]:
        """Return the spans of a request."""
        spans = self.lineage.timeline.by_id.values()
        return [span for span in spans if span.attributes.get(names.ATTR_REQUEST) == request_id]

    def dead_letter(self, identity: str) -> Node | None:
        """Return the dead letters about an id, or None without any."""
        found = [
            Node(
                kind="dead letter",
                id=letter.came_from,
                fields={"why": letter.why, "at": letter.place, "value": letter.value},
            )
            for letter in self.letters(identity)
        ]
        if not found:
            return None
        became = "rejected: no process could read or apply it"
        return Node(kind="record", id=identity, fields={"became": became}, went_into=found)


def is_before(attempt: int, request_id: str) -> bool:
    """Return whether an attempt came before the request of the same step that was used, a person's included."""
    used = request_id.rpartition("/")[2]
    return not used.isdecimal() or attempt < int(used)


def attempts_in(reason: str) -> int:
    """Return the number of attempts that an episode's end names, 1 if it names none."""
    named = re.match(r"(\d+) attempts", reason)
    return int(named[1]) if named else 1


def place_fields(place: RecordMetadata | None) -> dict[str, Any]:
    """Return the place of a record on the log, nothing if it is not known."""
    return {"at": f"{place.topic}[{place.partition}]@{place.offset}"} if place else {}
