"""The page's views by name, for the server and the export: each takes a query and returns a value for JSON."""

import asyncio
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from console.runs.token_texts import Pieces
from console.views.page import episodes, search, training
from console.views.page.comparison import Comparison, compare, compare_training_task
from console.views.page.header import page_header
from console.views.page.judging import judging_queue
from console.views.page.records import MAX_EXPORTED, MAX_SHOWN, RecordText, decode_record, json_lines, topic_named
from console.views.page.report_view import ReportView, report_view
from console.views.page.source import NotFound, RunSource
from console.views.page.time_curves import view_time
from console.views.page.wall import SlotGrid
from dart_streams.episodes import prompts
from topics import observations, training_metrics

Query = Mapping[str, str]

NUMBER = re.compile(r"\d{1,9}")
MAX_ID_CHARACTERS = 600
REPORT_MAX_AGE_S = 15.0
"""A report reads all metrics of a run, so it is kept for this long once all records are read."""


class PageViews:
    """The views of a source; some also show an ``other`` run to compare with."""

    def __init__(self, source: RunSource, other: RunSource | None = None) -> None:
        self.source = source
        self.other = other
        self.grid = SlotGrid(source.config)
        self._report: tuple[float, ReportView] | None = None
        self._reporting = asyncio.Lock()
        self._pieces: dict[str, Pieces] = {}
        self.views: dict[str, Callable[[Query], Any]] = {
            "run": lambda _: self.describe_run(),
            "wall": lambda _: self.grid.update(source.state),
            "trajectories": self.trajectories,
            "trajectory": self.trajectory,
            "prompt": self.prompt,
            "group": lambda query: training.view_group(read_id(query), source.state, source.config),
            "steps": lambda _: training.metric_curves(source.state),
            "step": lambda query: training.view_train_step(read_number(query, "id"), source.state),
            "metrics": lambda _: {"metrics": training_metrics.ALL, "headlines": training_metrics.HEADLINES},
            "queue": lambda _: judging_queue(source.state),
            "tasks": lambda _: training.summarize_tasks(source.state),
            "task": lambda query: training.view_task(read_id(query), source.state, source.config),
            "time": lambda _: view_time(source),
            "lag": lambda _: source.lags(),
            "log": lambda query: self.records(query, MAX_SHOWN),
            "dead-letters": self.dead_letters,
            "find": lambda query: episodes.find_page(read_id(query), source.state),
            "search": self.search,
            "report": lambda _: self.report(),
            "compare": self.compare,
            "compared-task": lambda query: compare_training_task(read_id(query), source, self.run_of(query)),
        }

    async def answer(self, name: str, query: Query) -> Any:
        """Return a view; raise :class:`NotFound` for an unknown name or an id that the run lacks."""
        if name not in self.views:
            raise NotFound("no such view")
        answer = self.views[name](query)
        return await answer if inspect.isawaitable(answer) else answer

    def run_of(self, query: Query) -> RunSource:
        """Return this run, or with ``of=other`` the other run."""
        if query.get("of", "") != "other":
            return self.source
        if self.other is None:
            raise NotFound(
                "there is no other run: choose one on the page Runs, or start the page with --against RUN|BUNDLE"
            )
        return self.other

    def describe_run(self) -> dict[str, Any]:
        """Return the header, the configuration, and the name of the other run."""
        other = self.other.name if self.other is not None else None
        return {"header": page_header(self.source), "config": self.source.config, "other": other}

    def trajectories(self, query: Query) -> episodes.TrajectoryPage:
        """Return a page of the table of trajectories."""
        cursor = read_number(query, "cursor") if query.get("cursor") else None
        return episodes.trajectory_page(self.source.state, read_filter(query), cursor)

    async def trajectory(self, query: Query) -> episodes.TrajectoryView:
        """Return a trajectory step by step."""
        identity, source = read_id(query), self.run_of(query)
        steps = await source.steps(identity)
        segments = await source.segments(identity)
        pieces = await self.pieces(source)
        return episodes.view_trajectory(identity, source.state, steps, segments, source.config.policy, pieces)

    async def pieces(self, source: RunSource) -> Pieces:
        """Return the bytes of a run's tokens, read once they are there."""
        if not self._pieces.get(source.name):
            self._pieces[source.name] = await asyncio.to_thread(source.read_pieces)
        return self._pieces[source.name]

    async def prompt(self, query: Query) -> Any:
        """Return the prompt of a step."""
        source = self.run_of(query)
        steps = await source.steps(read_id(query))
        if not 0 <= (index := read_number(query, "step")) < len(steps):
            raise NotFound(f"the trajectory has no step {index}")
        return prompts.prompt_turns(steps[: index + 1], source.config.policy)

    async def records(self, query: Query, limit: int) -> list[RecordText]:
        """Return the newest records of a topic that contain a text."""
        needle = query.get("q", "").encode()[:MAX_ID_CHARACTERS]
        records = await self.source.records(topic_named(query.get("topic", "")), needle, limit)
        return [decode_record(record) for record in records]

    async def lines(self, name: str, query: Query) -> Iterator[bytes]:
        """Return all matches of a filter as JSON lines in parts; raise :class:`NotFound` for an unknown name."""
        if name == "trajectories":
            state, wanted = self.source.state, read_filter(query)
            matching = [one for one in reversed(state.trajectories.values()) if episodes.is_wanted(one, wanted)]
            return json_lines(episodes.row_of(one, state) for one in matching)
        if name == "log":
            return json_lines(await self.records(query, MAX_EXPORTED))
        raise NotFound("there are lines of: trajectories, log")

    async def dead_letters(self, query: Query) -> Any:
        """Return the number of dead letters by topic, or the letters of one topic."""
        return await self.source.dead_letters(topic_named(query["topic"]) if query.get("topic") else None)

    async def report(self) -> ReportView:
        """Return the report, at most :data:`REPORT_MAX_AGE_S` old, or of the records that are read so far."""
        async with self._reporting:
            now_s = asyncio.get_running_loop().time()
            if self._report is not None and now_s - self._report[0] <= REPORT_MAX_AGE_S:
                return self._report[1]
            is_whole = self.source.progress.ready
            report = report_view(await self.source.report_inputs())
            self._report = (now_s, report) if is_whole else None
            return report

    async def search(self, query: Query) -> search.SearchView:
        """Return what contains a text: tasks, trajectories, and texts of the newest observations with it."""
        text = read_id(query)
        found = await self.source.records(observations.TOPIC, search.needle_of(text), MAX_SHOWN)
        return search.search_run(text, self.source.state, found)

    def compare(self, query: Query) -> Comparison:
        """Compare versions ``a`` and ``b`` at temperature ``t``; with ``of=other``, b is from the other run."""
        other = self.run_of(query)
        a, b = (read_number(query, name) if query.get(name) else None for name in ("a", "b"))
        wanted = query.get("t", "")
        temperature = next((t for t in self.source.config.evaluation.temperatures if f"{t:g}" == wanted), None)
        if wanted and temperature is None:
            raise NotFound(f"the run has no evaluation at temperature {wanted[:20]!r}")
        return compare(self.source, other, (a, b), temperature)


def read_filter(query: Query) -> dict[str, str]:
    """Return the filter of trajectories in a query."""
    return {name: query.get(name, "") for name in episodes.FILTERS}


def read_id(query: Query) -> str:
    """Return the id in a query; raise :class:`NotFound` without one."""
    identity = query.get("id", "").strip()
    if not identity or len(identity) > MAX_ID_CHARACTERS:
        raise NotFound("the query needs an id: ?id=…")
    return identity


def read_number(query: Query, name: str) -> int:
    """Return a number in a query; raise :class:`NotFound` for other text."""
    text = query.get(name, "")
    if not NUMBER.fullmatch(text):
        raise NotFound(f"not a number: {text[:40]!r}")
    return int(text)
