"""The run on the terminal: a live panel for people, a line now and then where there is no terminal."""

import asyncio
from collections.abc import Callable, Sequence

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from dart_streams.bus.lag import LagReader, by_group
from dart_streams.views.run_summary import Summary, smooth, sparkline
from topics import action_requests

REFRESH_S = 0.5
LINE_S = 10.0
LAG_S = 3.0
CURVE_POINTS = 60


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown: the run's id and phase, how long for, what is left, and the figures if the topics are read yet."""

    run_id: str
    phase: str
    phase_s: float
    left_s: float | None
    summary: Summary | None
    lag: dict[tuple[str, str], int]
    trained: dict[str, float]
    children: tuple[tuple[str, int], ...]
    news: str = ""


def panel(moment: Moment) -> RenderableType:
    """Draw the live panel."""
    title = f"dart_streams  {moment.run_id}  ·  {moment.phase}  {clock(moment.phase_s)}"
    if moment.left_s is not None:
        title += f"  ·  {clock(moment.left_s)} left"
    parts: list[RenderableType] = []
    if moment.summary is not None:
        parts = [curve_of(moment.summary), figures(moment, moment.summary)]
    if moment.news:
        parts.append(Text(moment.news))
    parts.append(children_of(moment.children))
    return Panel(Group(*parts), title=title, title_align="left", border_style="cyan", padding=(0, 1))


def curve_of(summary: Summary) -> RenderableType:
    """Draw the success curve of training episodes."""
    line = sparkline(smooth(summary.curve, CURVE_POINTS))
    return Text.assemble(
        ("success  ", "bold"),
        (line or "(no training episode has finished yet)", "green"),
        f"  {share(summary.success)} of the last episodes",
    )


def figures(moment: Moment, summary: Summary) -> RenderableType:
    """Draw the figures in two columns of names and values."""
    table = Table.grid(padding=(0, 2), expand=True)
    for style in ("dim", "", "dim", ""):
        table.add_column(style=style)
    evaluation = f"{summary.finished_eval}/{summary.ordered_eval}" if summary.ordered_eval else "none yet"
    version = f"{number(summary.version)} trained, {number(summary.served)} served"
    stale = f"{decimal(summary.staleness_mean)} mean, {number(summary.staleness_max)} max"
    lag = ", ".join(f"{group} {records}" for group, records in sorted(open_lag(moment).items())) or "none"
    left = [
        ("environment", f"{summary.steps_per_s:.1f} steps/s, {summary.utilisation:.0%} of slots past their reset"),
        ("episodes", f"{summary.episodes} finished, {summary.open_episodes} open"),
        ("evaluation", evaluation),
        ("lag", lag),
    ]
    right = [
        ("groups", f"{summary.groups} curated, {summary.groups_consumed} consumed"),
        ("version", version),
        ("staleness", stale),
        ("trainer", metrics_line(moment.trained)),
    ]
    for (left_name, left_value), (right_name, right_value) in zip(left, right, strict=True):
        table.add_row(left_name, left_value, right_name, right_value)
    return table


def open_lag(moment: Moment) -> dict[str, int]:
    """Return how many records each consumer group has yet to process, all of its topics together.

    A group is named after the processes in it: without such a process it is left out, unless the run supervises none.
    An action request is open only while its episode is, one at a time: it is dropped once nobody waits for the action.
    """
    living = {name.rpartition("-")[0] or name for name, _ in moment.children}
    result: dict[str, int] = {}
    for (group, topic), records in moment.lag.items():
        if topic == action_requests.TOPIC.name and moment.summary is not None:
            records = min(records, moment.summary.open_episodes)
        if records and (group in living or not living):
            result[group] = result.get(group, 0) + records
    return result


def children_of(children: Sequence[tuple[str, int]]) -> RenderableType:
    """Name the processes, and how often each was started again."""
    text = Text("processes  ", style="dim")
    for name, starts in children:
        text.append(name + "  ", style="green" if starts <= 1 else "yellow")
        if starts > 1:
            text.append(f"(started {starts} times)  ", style="yellow")
    return text


def line(moment: Moment) -> str:
    """Write the figures as one line."""
    left = f", {clock(moment.left_s)} left" if moment.left_s is not None else ""
    start = f"{moment.phase} {clock(moment.phase_s)}{left}"
    summary = moment.summary
    if summary is None:
        return f"{start} | {moment.news}" if moment.news else start
    parts = [start, f"{summary.steps_per_s:.1f} steps/s", f"{summary.utilisation:.0%} of slots past their reset"]
    if summary.ordered_eval and summary.finished_eval < summary.ordered_eval:
        parts.append(f"evaluation {summary.finished_eval}/{summary.ordered_eval}")
    if summary.episodes:
        parts += [
            f"{summary.episodes} episodes, success {share(summary.success)}",
            f"groups {summary.groups_consumed}/{summary.groups}",
        ]
    if summary.version is not None:
        parts.append(f"version {summary.version}, served {number(summary.served)}")
    if summary.staleness_max is not None:
        parts.append(f"staleness {decimal(summary.staleness_mean)} max {summary.staleness_max}")
    if moment.trained:
        parts.append(metrics_line(moment.trained))
    if behind := sum(open_lag(moment).values()):
        parts.append(f"lag {behind}")
    return " | ".join(parts)


SHOWN_METRICS = ("reward", "loss", "entropy", "grad_norm")


def metrics_line(trained: dict[str, float]) -> str:
    """Write the newest optimiser step's metrics."""
    shown = [f"{name} {trained[name]:.3g}" for name in SHOWN_METRICS if name in trained]
    return ", ".join(shown) or "no step yet"


def clock(seconds: float) -> str:
    """Write seconds as minutes:seconds."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    return f"{minutes}:{rest:02d}"


def share(value: float | None) -> str:
    """Write a share as a percentage."""
    return "–" if value is None else f"{value:.0%}"


def decimal(value: float | None) -> str:
    """Write a mean."""
    return "–" if value is None else f"{value:.1f}"


def number(value: int | None) -> str:
    """Write a count."""
    return "–" if value is None else str(value)


class Display:
    """Shows a run until it is cancelled.

    ``moment_of`` takes lag and trainer metrics; ``newest_metrics`` reads those of the last optimiser step, in a thread.
    """

    def __init__(
        self,
        moment_of: Callable[[dict[tuple[str, str], int], dict[str, float]], Moment],
        console: Console,
        newest_metrics: Callable[[], dict[str, float]],
    ) -> None:
        self.moment_of = moment_of
        self.console = console
        self.newest_metrics = newest_metrics
        self.lag: dict[tuple[str, str], int] = {}
        self.trained: dict[str, float] = {}

    async def show(self) -> None:
        """Refresh the panel, or write a line every few seconds."""
        if not self.console.is_terminal:
            while True:
                await asyncio.sleep(LINE_S)
                self.console.print(line(self.moment()), soft_wrap=True, highlight=False)
        with Live(self.panel(), console=self.console, auto_refresh=False) as live:
            while True:
                live.update(self.panel(), refresh=True)
                await asyncio.sleep(REFRESH_S)

    async def look(self, lags: LagReader) -> None:
        """Keep the figures that are not in the topics' records up to date."""
        while True:
            self.lag = by_group(await lags.read())
            self.trained = await asyncio.to_thread(self.newest_metrics)
            await asyncio.sleep(LAG_S)

    def moment(self) -> Moment:
        """Look at the run now."""
        return self.moment_of(self.lag, self.trained)

    def panel(self) -> RenderableType:
        """Draw the run now."""
        return panel(self.moment())
