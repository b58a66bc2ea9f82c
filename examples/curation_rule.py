"""A curation rule of one's own: a group that nearly always succeeds is dropped, for it teaches little.

The rule wraps the reducer of the ``groups`` agent, and both data managers run in memory over the same simulated tasks.
``.venv/streams/bin/python -m examples.curation_rule``; docs/development.md says how a rule becomes part of the project.
"""

from collections.abc import Callable
from typing import Any, cast

from benchmarks.curation_world import Odds, SimulatedCircle, task_set
from dart_streams.config import parse
from dart_streams.curation.reducer import Decision, InputRecord
from topics.curated import CuratedGroup

HIGHEST_MEAN = 0.8
"""Groups with a higher mean reward are dropped."""

Reducer = Callable[[Any, InputRecord], tuple[Any, list[Decision]]]


def is_informative(group: CuratedGroup) -> bool:
    """The rule: a pure function of what was decided."""
    return group.mean <= HIGHEST_MEAN


def with_rule(reducer: Reducer) -> Reducer:
    """Return the reducer with the rule after it."""

    def apply(state: Any, record: InputRecord) -> tuple[Any, list[Decision]]:
        state, decisions = reducer(state, record)
        return state, [decision for decision in decisions if is_informative(cast(CuratedGroup, decision.event))]

    return apply


def play(rule: bool, rollouts: int = 2000) -> list[CuratedGroup]:
    """Play rollouts of 20 tasks from easy to hopeless, and return the groups that were curated."""
    circle = SimulatedCircle(parse({}), task_set(20), Odds())
    if rule:
        agent = circle.agents["groups"]
        circle.replace_agent(agent._replace(apply=with_rule(agent.apply)))
    for _ in range(rollouts):
        circle.settle()
        circle.end_one(0)
        circle.train()
    return [written.event for written in circle.logs["curated"]]


def main() -> None:
    """Compare the mean reward of what is trained on, with and without the rule."""
    for rule in (False, True):
        groups = play(rule)
        highest = max(group.mean for group in groups)
        print(f"{'with' if rule else 'without'} the rule: {len(groups)} groups, highest mean reward {highest:.2f}")


if __name__ == "__main__":
    main()
