"""Answers to questions on a run, as plain values for programs that ask in JSON. Pure."""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from console.lineage.lineage import Lineage, Node
from console.lineage.traces import Timeline
from console.runs.run_state import RunState
from console.runs.task_history import TaskHistory
from console.views.explanations import ORDERED_BY, Explanations
from console.views.page.training import metric_curves, view_group
from dart_streams.config import Config
from dart_streams.errors import UserError
from topics.rollout_orders import RolloutOrder

Answer = dict[str, Any]

MOST_CHANGES = 15
"""Metrics in a comparison, those with the largest change first."""


class RunAnswers:
    """Answers on one run, from its folded log (``RunState(keep_steps=True)``) and its spans."""

    def __init__(self, run: str, config: Config, state: RunState, timeline: Timeline) -> None:
        self.run = run
        self.config = config
        self.state = state
        self.timeline = timeline

    def describe(self) -> Answer:
        """Return what the run is: its recipes, and counts of episodes, groups, optimizer steps and versions."""
        state = self.state
        episodes = Counter((one.purpose, one.outcome) for one in state.finished.values())
        fates = Counter(
            group.fate for groups in TaskHistory(self.config, state).groups.values() for group in groups.values()
        )
        return {
            "run": self.run,
            "recipes": list(self.config.recipe),
            "engine": self.config.rollout.engine,
            "environment": self.config.env.backend,
            "episodes": [
                {"purpose": purpose, "outcome": outcome, "count": count}
                for (purpose, outcome), count in sorted(episodes.items())
            ],
            "tasks": len({one.task_id for one in state.finished.values() if one.purpose == "train"}),
            "groups": dict(fates.most_common()),
            "train_steps": len(state.trained),
            "newest_version": state.newest_version,
        }

    def explain_order(self, order_id: str) -> Answer:
        """Return why a rollout was ordered, how it ended, and what its group became; raise UserError without it."""
        if order_id not in self.state.orders:
            raise UserError(
                f"run {self.run!r} has no order {order_id!r}: ids are as in g000012/3/0 (group/sample/attempt)"
            )
        order, place = self.state.orders[order_id]
        finished = self.state.finished.get(order_id)
        answer: Answer = {
            "order": msgspec.to_builtins(order),
            "ordered_at_ms": place.at_ms,
            "ordered_by": ORDERED_BY[order.purpose],
            "outcome": msgspec.to_builtins(finished) if finished else None,
        }
        if order.purpose == "train":
            group = self.explain_group(order.group_id)
            answer |= {"why": group["why"], "group": group}
        if order.attempt:
            answer["repeats"] = self._attempts_before(order)
        return answer

    def _attempts_before(self, order: RolloutOrder) -> list[Answer]:
        """Return the earlier attempts of an order, whose faults made dispatch order it again."""
        stem = order.order_id.rpartition("/")[0]
        earlier = [f"{stem}/{attempt}" for attempt in range(order.attempt)]
        ended = {name: self.state.finished[name].outcome for name in earlier if name in self.state.finished}
        return [{"order_id": name, "outcome": ended.get(name)} for name in earlier]

    def explain_group(self, group_id: str) -> Answer:
        """Return a group's fate with the reason, its members, and the optimizer steps that took it."""
        answer: Answer = msgspec.to_builtins(view_group(group_id, self.state, self.config))
        return answer

    def explain_task(self, task_id: str) -> Answer:
        """Return a task's success rate and budget with the reason, and its groups; raise UserError without it."""
        history = TaskHistory(self.config, self.state, task_id)
        if task_id not in history.tasks:
            raise UserError(f"nothing is decided of task {task_id!r} in run {self.run!r}: list_rows has the tasks")
        groups = [msgspec.to_builtins(group) for group in history.groups.get(task_id, {}).values()]
        return {**msgspec.to_builtins(history.row(task_id)), "history": groups}

    def compare_around(self, version: int, window: int = 20) -> Answer:
        """Return the metrics that changed most at a version, over ``window`` optimizer steps before and from it on.

        ``change`` is the difference of the means in standard deviations of a step's value. Raises UserError if a side
        has fewer than two steps.
        """
        curves = metric_curves(self.state)
        middle = next((place for place, one in enumerate(curves.versions) if one >= version), len(curves.versions))
        sides = slice(max(0, middle - window), middle), slice(middle, middle + window)
        steps = [curves.steps[side] for side in sides]
        if min(map(len, steps)) < 2:
            newest = curves.versions[-1] if curves.versions else None
            raise UserError(
                f"version {version} needs two optimizer steps before and from it on: it has {len(steps[0])} and "
                f"{len(steps[1])}, and the newest version is {newest}"
            )
        both_sides = {name: [values[side] for side in sides] for name, values in curves.metrics.items()}
        changes, one_sided = compare_sides(both_sides)
        return {
            "version": version,
            "steps_before": [steps[0][0], steps[0][-1]],
            "steps_after": [steps[1][0], steps[1][-1]],
            "changes": changes[:MOST_CHANGES],
            "on_one_side_alone": one_sided,
        }

    def trace(self, identity: str) -> Answer:
        """Return what an id was made of and what it went into, or why nothing was, without long lists of numbers."""
        lineage = Lineage(self.state, self.timeline, self.run)
        return brief_node(Explanations(lineage, self.config).of(identity))


def compare_sides(metrics: Mapping[str, Sequence[Sequence[float | None]]]) -> tuple[list[Answer], list[str]]:
    """Return each metric's change between two sides, largest first, and the names of those on one side alone."""
    changes, one_sided = list[Answer](), list[str]()
    for name, both in metrics.items():
        before, after = ([value for value in side if value is not None] for side in both)
        if len(before) < 2 or len(after) < 2:
            one_sided += [name] if bool(before) != bool(after) else []
            continue
        spread = (statistics.pvariance(before) + statistics.pvariance(after)) ** 0.5 / 2**0.5
        old, new = statistics.fmean(before), statistics.fmean(after)
        if old != new:
            change = (new - old) / spread if spread else math.inf
            changes.append({"metric": name, "before": old, "after": new, "change": change})
    changes.sort(key=lambda one: -abs(one["change"]))
    for one in changes:
        one["change"] = round(one["change"], 2) if math.isfinite(one["change"]) else None  # JSON has no infinity
    return changes, one_sided


def brief_node(node: Node) -> Answer:
    """Return a tree of a lineage without the numbers of single tokens."""
    fields = {name: value for name, value in node.fields.items() if name not in ("tokens", "logprobs", "metrics")}
    answer: Answer = {"kind": node.kind, "id": node.id, **fields}
    for name in ("made_of", "went_into"):
        if nodes := getattr(node, name):
            answer[name] = [brief_node(one) for one in nodes]
    return answer
