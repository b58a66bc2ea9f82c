"""Search of the page: tasks, trajectories by outcome, and texts of instructions, answers and actions. Pure."""

from collections.abc import Iterable, Iterator
from itertools import islice

import msgspec

from console.runs.bundle import BundleRecord
from console.runs.run_state import RunState
from console.views.page.episodes import TrajectoryRow, row_of
from console.views.page.natural_order import natural_key
from dart_streams.config.text import MALFORMED
from topics.observations import Observation
from topics.trajectories import Trajectory

MAX_FOUND = 50
"""Tasks, trajectories and texts that a search shows of each."""
EXCERPT = 60
"""Characters on each side of a match."""


class TextMatch(msgspec.Struct, frozen=True, kw_only=True):
    """A text of a trajectory that contains the query; ``step`` is the screen on which it was decided."""

    trajectory_id: str
    task_id: str
    step: int
    place: str
    excerpt: str


class SearchView(msgspec.Struct, frozen=True, kw_only=True):
    """Results of a search, at most :data:`MAX_FOUND` of each; ``matching`` counts all matching trajectories."""

    query: str
    tasks: list[str]
    trajectories: list[TrajectoryRow]
    matching: int
    texts: list[TextMatch]


def search_run(query: str, state: RunState, records: Iterable[BundleRecord]) -> SearchView:
    """Return tasks and trajectories that have every word of a query, and texts in ``records`` that contain it.

    Capitals do not matter. ``records`` are observations that contain the query, the newest first.
    """
    words = query.casefold().split()
    trajectories = [one for one in reversed(state.trajectories.values()) if has_words(describe(one), words)]
    tasks = {trajectory.task_id: None for trajectory in state.trajectories.values()}
    return SearchView(
        query=query,
        tasks=sorted((task for task in tasks if has_words(task, words)), key=natural_key)[:MAX_FOUND],
        trajectories=[row_of(trajectory, state) for trajectory in trajectories[:MAX_FOUND]],
        matching=len(trajectories),
        texts=list(islice(text_matches(query, records), MAX_FOUND)),
    )


def describe(trajectory: Trajectory) -> str:
    """Return the facts of a trajectory that a search reads."""
    facts = (trajectory.task_id, trajectory.outcome, trajectory.purpose, trajectory.group_id, trajectory.trajectory_id)
    return " ".join(facts)


def has_words(text: str, words: Iterable[str]) -> bool:
    """Return whether a text contains each of some words."""
    folded = text.casefold()
    return all(word in folded for word in words)


def needle_of(query: str) -> bytes:
    """Return a query as the bytes of a text inside of JSON."""
    return msgspec.json.encode(query)[1:-1]


def text_matches(query: str, records: Iterable[BundleRecord]) -> Iterator[TextMatch]:
    """Yield the texts of observations that contain a query; an instruction once for its trajectory."""
    decode = msgspec.json.Decoder(Observation).decode
    instructed: set[str] = set()
    for record in records:
        try:
            event = decode(record.value or b"")
        except MALFORMED:
            continue
        for place, text in texts_of(event):
            excerpt = cut_excerpt(text, query)
            if excerpt and not (place == "instruction" and event.trajectory_id in instructed):
                instructed.update([event.trajectory_id] if place == "instruction" else ())
                yield TextMatch(
                    trajectory_id=event.trajectory_id,
                    task_id=event.order.task_id,
                    step=max(0, event.step - 1) if place != "end" else event.step,
                    place=place,
                    excerpt=excerpt,
                )


def texts_of(event: Observation) -> Iterator[tuple[str, str]]:
    """Yield the texts of an observation with their places; an action only if the answer does not contain it."""
    yield "instruction", event.instruction
    if (taken := event.taken) is not None:
        yield "answer", taken.text
        if taken.action is not None and taken.action not in taken.text:
            yield "action", taken.action
    if event.end is not None:
        yield "end", event.end.reason


def cut_excerpt(text: str, query: str) -> str:
    """Return the part of a text around the first match; empty without one."""
    place = text.lower().find(query.lower())
    if place < 0:
        return ""
    start, end = max(0, place - EXCERPT), place + len(query) + EXCERPT
    return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"
