"""Stalls of the circle: silent topics, since when, who writes them, and what that writer waits for. Pure."""

from collections.abc import Mapping

import msgspec

from dart_streams.history.run_state import TopicActivity

NOBODY = "nobody yet"


class Edge(msgspec.Struct, frozen=True):
    """A topic, its writer, and the topics that the writer consumes."""

    topic: str
    writer: str
    inputs: tuple[str, ...]


EDGES = (
    Edge("rollout-orders", "curator (dispatch)", ("rollout-budgets", "curated", "weights")),
    Edge("observations", "environment workers", ("rollout-orders", "actions")),
    Edge("action-requests", "environment workers", ("observations",)),
    Edge("actions", "rollout workers", ("action-requests",)),
    Edge("trajectories", "recorder", ("observations",)),
    Edge("task-difficulty", "curator (difficulty)", ("trajectories",)),
    Edge("rollout-budgets", "curator (budget)", ("task-difficulty",)),
    Edge("curated", "curator (groups)", ("trajectories",)),
    Edge("weights", "trainer", ("curated",)),
    Edge("weights-serving", "rollout workers", ("weights",)),
)


class Stall(msgspec.Struct, frozen=True, kw_only=True):
    """A silent topic; with ``waiting`` its writer has no newer input, so the cause is further upstream."""

    topic: str
    silent_s: float
    last_from: str
    writer: str
    waiting: bool
    newest_input: str


def stalls(activity: Mapping[str, TopicActivity], since_ms: int, now_ms: int, bound_s: float) -> list[Stall]:
    """Return the topics without a record for ``bound_s``, those whose writers have newer input first.

    A topic counts from its first record, or its writer's first input, on; ``since_ms`` is when watching began.
    """
    found = []
    for edge in EDGES:
        inputs = [(activity[name].at_ms, name) for name in edge.inputs if name in activity]
        own = activity.get(edge.topic)
        if own is None and not inputs:
            continue
        own_ms = own.at_ms if own else min(since_ms, *(at for at, _ in inputs))
        silent_s = (now_ms - own_ms) / 1000
        if silent_s >= bound_s:
            newest = max(inputs, default=(0, "nothing"))
            found.append(
                Stall(
                    topic=edge.topic,
                    silent_s=round(silent_s, 1),
                    last_from=own.sender if own and own.sender else NOBODY if own is None else edge.writer,
                    writer=edge.writer,
                    waiting=newest[0] <= own_ms,
                    newest_input=newest[1],
                )
            )
    return sorted(found, key=lambda stall: (stall.waiting, stall.last_from == NOBODY, -stall.silent_s))


def explanation(stall: Stall) -> str:
    """Return the likely reason of a stall."""
    if stall.waiting:
        return f"{stall.writer} seems to wait for {stall.newest_input}"
    return f"{stall.writer} has had newer input on {stall.newest_input}: look at its log"
