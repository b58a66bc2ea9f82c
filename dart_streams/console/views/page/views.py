"""The page's views by name: each takes a query and returns what is encoded as JSON, for the server and the export."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from dart_streams.console.views.page import comparison, episodes, lines, log_view, report_view, time_curves, training
from dart_streams.console.views.page.comparison import Comparison, EvaluatedRun, TaskPair
from dart_streams.console.views.page.header import page_header
from dart_streams.console.views.page.source import NotFound, RunSource
from dart_streams.console.views.page.wall import SlotGrid, SlotTile

Query = Mapping[str, str]
View = Callable[[Query], Awaitable[Any]]

NUMBER = re.compile(r"\d{1,9}")
LONGEST_ID = 600
REPORT_S = 15.0
"""A report is made anew after this long: it reads all metrics of a run."""


class PageViews:
    """The views of a source; some also of an ``other`` run, which it is compared with."""

    def __init__(self, source: RunSource, other: RunSource | None = None) -> None:
        self.source = source
        self.other = other
        self.grid = SlotGrid(source.config)
        self._report: tuple[float, report_view.ReportView] | None = None
        self._reporting = asyncio.Lock()
        self.views: dict[str, View] = {
            "run": self.run_view,
            "wall": self.wall,
            "trajectories": self.trajectories,
            "trajectory": self.trajectory,
            "prompt": self.prompt,
            "group": self.group,
            "steps": self.steps,
            "step": self.step,
            "metrics": self.metrics,
            "tasks": self.tasks,
            "task": self.task,
            "time": self.time,
            "lag": self.lag,
            "log": self.log,
            "dead-letters": self.dead_letters,
            "find": self.find,
            "report": self.report,
            "compare": self.compare,
            "compared-task": self.compared_task,
        }

    async def answer(self, name: str, query: Query) -> Any:
        """Return a view; raise :class:`NotFound` if there is none such, or it has nothing of what is asked for."""
        view = self.views.get(name)
        if view is None:
            raise NotFound("no such view")
        return await view(query)

    def side(self, query: Query) -> RunSource:
        """Return the run that is asked for: this one, or with ``of=other`` the other."""
        if query.get("of", "") != "other":
            return self.source
        if self.other is None:
            raise NotFound("there is no other run: start the page with --against RUN|BUNDLE")
        return self.other

    def evaluated(self, query: Query) -> tuple[EvaluatedRun, EvaluatedRun]:
        """Return both sides of a comparison: the second is the same one, or with ``of=other`` the other run."""
        first, second = evaluated(self.source), self.side(query)
        return first, first if second is self.source else evaluated(second)

    async def run_view(self, _: Query) -> dict[str, Any]:
        """The run's configuration as far as the page needs it."""
        config = self.source.config
        return {
            "header": page_header(self.source),
            "slots": config.env.workers * config.env.slots,
            "policy": config.policy.model_id,
            "backend": config.env.backend,
            "other": run_name(self.other) if self.other is not None else None,
            "config": config,
        }

    async def wall(self, _: Query) -> list[SlotTile]:
        """Every slot."""
        return self.grid.update(self.source.state)

    async def trajectories(self, query: Query) -> episodes.TrajectoryPage:
        """A part of the table of trajectories."""
        wanted = {name: query.get(name, "") for name in episodes.FIELDS}
        cursor = query.get("cursor", "")
        return episodes.table(self.source.state, wanted, number(cursor) if cursor else None)

    async def trajectory(self, query: Query) -> episodes.TrajectoryView:
        """A trajectory step by step."""
        identity, source = named(query), self.side(query)
        observations = await source.steps(identity)
        segments = await source.segments(identity)
        return episodes.trajectory(identity, source.state, observations, segments, source.config.policy)

    async def prompt(self, query: Query) -> Any:
        """The prompt of a step."""
        source = self.side(query)
        observations = await source.steps(named(query))
        return episodes.prompt(observations, number(query.get("step", "")), source.config.policy)

    async def group(self, query: Query) -> training.GroupView:
        """A group."""
        return training.group(named(query), self.source.state, self.source.config)

    async def steps(self, _: Query) -> training.MetricCurves:
        """The metrics of all optimizer steps."""
        return training.train_steps(self.source.state)

    async def metrics(self, _: Query) -> training.MetricTable:
        """What the metrics of optimizer steps mean."""
        return training.metric_table()

    async def step(self, query: Query) -> training.TrainStepView:
        """An optimizer step."""
        return training.train_step(number(query.get("id", "")), self.source.state)

    async def tasks(self, _: Query) -> list[training.TaskSummary]:
        """The table of tasks."""
        return training.tasks(self.source.state)

    async def task(self, query: Query) -> training.TaskView:
        """A task."""
        return training.task(named(query), self.source.state, self.source.config)

    async def time(self, _: Query) -> time_curves.TimeView:
        """The run over time."""
        config, source = self.source.config, self.source
        slots = config.env.workers * config.env.slots
        return time_curves.over_time(source.state, source.journal(), source.now_ms, slots)

    async def lag(self, _: Query) -> Any:
        """The lag of each consumer group."""
        return await self.source.lags()

    async def log(self, query: Query) -> list[log_view.RecordText]:
        """Records of a topic."""
        return await self.records(query, log_view.LIMIT)

    async def records(self, query: Query, limit: int) -> list[log_view.RecordText]:
        """The newest records of a topic with a text in them."""
        topic = log_view.topic_named(query.get("topic", ""))
        found = await self.source.records(topic, query.get("q", "").encode()[:LONGEST_ID], limit)
        return [log_view.readable(record) for record in found]

    async def lines(self, name: str, query: Query) -> Iterator[bytes]:
        """All that a filter matches, as JSON lines in parts; raise :class:`NotFound` if there are no such lines."""
        if name == "trajectories":
            return lines.trajectory_lines(self.source.state, {field: query.get(field, "") for field in episodes.FIELDS})
        if name == "log":
            return lines.record_lines(await self.records(query, log_view.EXPORTED))
        raise NotFound("there are lines of: trajectories, log")

    async def dead_letters(self, query: Query) -> Any:
        """Dead letters: how many of each topic, or those of one."""
        name = query.get("topic", "")
        return await self.source.dead_letters(log_view.topic_named(name) if name else None)

    async def find(self, query: Query) -> dict[str, Any]:
        """Which page knows an id."""
        return episodes.find(named(query), self.source.state)

    async def report(self, _: Query) -> report_view.ReportView:
        """The report: what report.json has, and its curves; made anew after a while only."""
        async with self._reporting:
            now_s = asyncio.get_running_loop().time()
            if self._report is None or now_s - self._report[0] > REPORT_S:
                self._report = now_s, report_view.report_view(await self.source.report_inputs())
            return self._report[1]

    async def compare(self, query: Query) -> Comparison:
        """Two evaluations: versions ``a`` and ``b`` at temperature ``t``; ``of=other`` takes b from the other run."""
        first, second = self.evaluated(query)
        versions = [number(query[name]) if query.get(name) else None for name in ("a", "b")]
        wanted = query.get("t", "")
        temperature = next((t for t in first.config.evaluation.temperatures if f"{t:g}" == wanted), None)
        if wanted and temperature is None:
            raise NotFound(f"nothing was evaluated at temperature {wanted[:20]!r}")
        return comparison.compare(first, second, (versions[0], versions[1]), temperature)

    async def compared_task(self, query: Query) -> TaskPair:
        """A task that was trained on, at both ends."""
        return comparison.of_task(named(query), *self.evaluated(query))


def evaluated(source: RunSource) -> EvaluatedRun:
    """Return what a comparison needs of a run."""
    return EvaluatedRun(run_name(source), source.config, source.task_set(), source.state)


def run_name(source: RunSource) -> str:
    """Return the name by which a person knows a run."""
    return source.config.bus.run.removeprefix("dart.")


def named(query: Query) -> str:
    """Return the id that a query names; raise :class:`NotFound` if it names none."""
    identity = query.get("id", "").strip()
    if not identity or len(identity) > LONGEST_ID:
        raise NotFound("name something: ?id=…")
    return identity


def number(text: str) -> int:
    """Return a number of a query; raise :class:`NotFound` if it is none."""
    if not NUMBER.fullmatch(text):
        raise NotFound(f"not a number: {text[:40]!r}")
    return int(text)
