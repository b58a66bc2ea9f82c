"""Builds the tree of an id in both directions: its inputs and its results. Pure."""

import difflib
import itertools
import re
from collections.abc import Iterable
from operator import attrgetter
from typing import Any

import msgspec

from console.lineage.traces import Timeline, answer_in_time, request_segments
from console.runs.run_state import RunState
from dart_streams.errors import UserError
from dart_streams.telemetry import spans
from topics import curated, observations, trained, trajectories, weights, weights_serving
from topics.curated import CuratedGroup, Member
from topics.observations import ExecutedAction

READ = (observations.TOPIC, trajectories.TOPIC, curated.TOPIC, trained.TOPIC, weights.TOPIC, weights_serving.TOPIC)
SHA_CHARACTERS = 8
"""Fewest characters that name a screenshot."""


class Node(msgspec.Struct, kw_only=True):
    """A node with its inputs (``made_of``) and its results (``went_into``)."""

    kind: str
    id: str
    ms: float | None = None
    fields: dict[str, Any] = {}
    made_of: list["Node"] = []
    went_into: list["Node"] = []


class Lineage:
    """Builds trees from a run's folded log and its spans."""

    def __init__(self, state: RunState, timeline: Timeline, run: str) -> None:
        self.state = state
        self.timeline = timeline
        self.run = run

    def of(self, identity: str) -> Node:
        """Return the tree of an id, as :meth:`find`; raise UserError as :meth:`refusal` without one."""
        if (node := self.find(identity)) is None:
            raise self.refusal(identity)
        return node

    def find(self, identity: str) -> Node | None:
        """Return the tree of a request, trajectory, group, optimizer step (a number), version (``v12``) or screenshot.

        A screenshot is named by its sha256, or the beginning of it. None if nothing was made of it: a request that was
        not used, a group that was not curated, an unknown id.
        """
        state = self.state
        if request := re.fullmatch(r"(.+)/(\d+)/(\d+|person)", identity):
            taken = self.action(request[1], int(request[2]))
            if taken is not None and taken.request_id == identity:
                return self.step(request[1], int(request[2]), up=True)
        elif identity in state.observations:
            return self.trajectory(identity, up=True)
        elif identity in state.groups:
            return self.group(identity, up=True)
        elif identity.isdecimal() and int(identity) in state.trained:
            return self.train_step(int(identity), up=True)
        elif re.fullmatch(r"v\d+", identity) and int(identity[1:]) in state.versions:
            return self.version(int(identity[1:]), down=True)
        elif len(identity) >= SHA_CHARACTERS:
            for sha256, seen in state.screenshots.items():
                if sha256.startswith(identity):
                    steps = [self.step(trajectory_id, index, up=True) for trajectory_id, index in seen]
                    return Node(kind="screenshot", id=sha256, fields={"seen": len(seen)}, went_into=steps)
        return None

    def refusal(self, identity: str) -> UserError:
        """Return the error for an id that the run never had, with the nearest one and the forms of ids."""
        state = self.state
        known = itertools.chain(state.groups, state.orders_of, state.observations, map(str, state.trained))
        near = difflib.get_close_matches(identity, known, n=1, cutoff=0.7)
        return UserError(
            f"run {self.run!r} has nothing called {identity!r}, nor has it a dead letter that names it"
            + (f": did you mean {near[0]!r}?" if near else ".")
            + f" Ids: a request (TRAJECTORY/STEP/ATTEMPT), a trajectory ({len(state.observations)} in the log), "
            f"a group (g000012, {len(state.groups)} curated), a train step (a number up to "
            f"{max(state.trained, default=0)}), a weight version (v3), a screenshot (sha256), an order (g000012/3/0), "
            "a proposed task, a record (observations[0]@17)"
        )

    def action(self, trajectory_id: str, index: int) -> ExecutedAction | None:
        """Return action ``index``, which the next observation has, or None."""
        observation = self.state.observation(trajectory_id, index + 1)
        return observation.taken if observation is not None else None

    def version(self, version: int, *, down: bool = False) -> Node:
        """Return a weight version, the step that made it, and the workers that switched to it and served it."""
        event, switches = self.state.versions[version].event, self.timeline.switches.get(version, [])
        switched = [
            Node(kind="switch", id=span.process, ms=round(span.ms, 3), fields={"status": span.status})
            for span in sorted(switches, key=attrgetter("start_ms"))
        ]
        served = [
            Node(kind="served", id=worker, fields={"since_ms": first.since_ms, "pause_ms": first.pause_ms})
            for (number, worker), first in sorted(self.state.served.items())
            if number == version
        ]
        return Node(
            kind="weights",
            id=f"v{version}",
            fields={"epoch": event.epoch, "uri": event.uri, "sha256": event.sha256[:16]},
            made_of=[self.train_step(n) for n, step in self.state.trained.items() if down and step.version == version],
            went_into=[*switched, *served],
        )

    def published(self, version: int) -> list[Node]:
        """Return a weight version, or nothing if it was never published."""
        return [self.version(version)] if version in self.state.versions else []

    def train_step(self, number: int, *, up: bool = False) -> Node:
        """Return an optimizer step with its groups and imitated successes, and the version that it made."""
        step = self.state.trained[number]
        span = self.timeline.get(spans.train_step_span(self.run, step.version))
        past, replayed = [], set(step.replayed)
        for identity in step.past:
            known = self.state.trajectories.get(identity)
            fields = {"task": known.task_id, "reward": known.reward} if known else {}
            past.append(Node(kind="replayed" if identity in replayed else "imitated", id=identity, fields=fields))
        return Node(
            kind="train step",
            id=str(number),
            ms=round(span.ms, 3) if span else None,
            fields={"version": step.version, "epoch": step.epoch, "at_ms": step.at_ms, "metrics": step.metrics},
            made_of=[*(self.group(group_id) for group_id in (*step.group_ids, *step.feedback)), *past],
            went_into=self.published(step.version) if up else [],
        )

    def train_steps(self, numbers: Iterable[int], **fields: Any) -> list[Node]:
        """Return optimizer steps without their inputs, and the versions that they made."""
        steps = [self.state.trained[number] for number in numbers]
        return [
            Node(
                kind="train step",
                id=str(step.train_step),
                fields={"version": step.version, "at_ms": step.at_ms, **fields},
                went_into=self.published(step.version),
            )
            for step in steps
        ]

    def group(self, group_id: str, *, up: bool = False) -> Node:
        """Return a curated group, its members with their selected steps, and the optimizer steps that took it."""
        if group_id not in self.state.groups:
            return Node(kind="group", id=group_id, fields={"lost": "the log has no such group any more"})
        group, _ = self.state.groups[group_id]
        return Node(
            kind="group",
            id=group_id,
            fields={"task": group.task_id, "mean": group.mean, "std": group.std} | said_of(group),
            made_of=[self.trajectory(member.trajectory_id, member) for member in group.members],
            went_into=self.train_steps(self.state.trained_with.get(group_id, [])) if up else [],
        )

    def trajectory(self, trajectory_id: str, member: Member | None = None, *, up: bool = False) -> Node:
        """Return a trajectory with its steps (of a group's member the selected ones), its groups and imitations."""
        known = self.state.trajectories.get(trajectory_id)
        span = self.timeline.get(spans.trajectory_span(trajectory_id))
        first = self.state.observation(trajectory_id, 0)
        fields: dict[str, Any] = {}
        if known is not None:
            fields |= {"task": known.task_id, "outcome": known.outcome, "reward": known.reward, "steps": known.steps}
            fields |= {"person_steps": known.person_steps} if known.person_steps else {}
        if first is not None:
            fields |= {"env_host": first.env_host, "order": first.order.order_id, "purpose": first.order.purpose}
        if member is not None:
            fields |= {"advantage": member.advantage, "source": member.source}
        steps = member.selected if member else range(max(self.state.observations.get(trajectory_id, {}), default=0))
        went_into: list[Node] = []
        if up:
            imitating = self.train_steps(self.state.imitated_by.get(trajectory_id, []), imitated=True)
            went_into = [*self.groups_with(trajectory_id), *imitating]
        return Node(
            kind="trajectory",
            id=trajectory_id,
            ms=round(span.ms, 3) if span else None,
            fields=fields,
            made_of=[self.step(trajectory_id, index) for index in steps],
            went_into=went_into,
        )

    def groups_with(self, trajectory_id: str, index: int | None = None) -> list[Node]:
        """Return the groups of a trajectory; a group that did not select action ``index`` has no optimizer steps."""
        nodes = []
        for group_id in self.state.groups_of.get(trajectory_id, []):
            group, _ = self.state.groups[group_id]
            member = next(m for m in group.members if m.trajectory_id == trajectory_id)
            node = Node(kind="group", id=group_id)
            node.fields = {"task": group.task_id, "advantage": member.advantage, "source": member.source}
            node.fields |= said_of(group)
            if index is None or index in member.selected:
                node.went_into = self.train_steps(self.state.trained_with.get(group_id, []))
            else:
                node.fields["left_out"] = "its step is not among those selected to train on"
            nodes.append(node)
        return nodes

    def step(self, trajectory_id: str, index: int, *, up: bool = False) -> Node:
        """Return an action with its screenshot, its tokens, and the parts of its latency."""
        shown, taken = self.state.observation(trajectory_id, index), self.action(trajectory_id, index)
        fields: dict[str, Any] = {}
        if shown is not None and shown.screenshot is not None:
            fields |= {"screenshot": shown.screenshot.sha256, "env_host": shown.env_host, "at_ms": shown.at_ms}
        if taken is not None:
            fields |= {
                "action": taken.action or taken.text,
                "tokens": taken.tokens,
                "logprobs": taken.logprobs,
                "versions": [msgspec.to_builtins(segment) for segment in taken.versions],
                "prompt_sha": taken.prompt_sha,
            }
            if taken.take_over is not None:
                fields |= {"by": "a person", "take_over": taken.take_over}
        span = self.timeline.steps.get((trajectory_id, index))
        trace = answer_in_time(self.timeline.below(span)) if span else []
        groups = self.groups_with(trajectory_id, index) if up else []
        return Node(
            kind="request",
            id=taken.request_id if taken is not None else f"{trajectory_id}/{index}",
            ms=round(max(part.end_ms for part in trace) - span.start_ms, 3) if span else None,
            fields=fields | ({"trace": span.trace} if span else {}),
            made_of=[Node(kind="segment", id=part.name, ms=part.ms) for part in request_segments(trace)],
            went_into=[Node(kind="trajectory", id=trajectory_id, went_into=groups)] if up else [],
        )


def said_of(group: CuratedGroup) -> dict[str, Any]:
    """Return the feedback that a group was made of, and its corrections; nothing for a group of rollouts."""
    if not group.feedback:
        return {}
    corrections = [action for member in group.members for action in member.corrections]
    return {"feedback": group.feedback} | ({"corrections": corrections} if corrections else {})
