"""The display of a run: a live panel on a terminal, or a line every few seconds elsewhere."""

import asyncio
import dataclasses
from collections.abc import Callable, Mapping, Sequence

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from console.runs.run_state import RunState
from console.runs.time_slices import MAX_SPAN_MS, SLICE_MS, split_span
from console.views.optional_numbers import mean_or_none
from dart_streams.bus.lag import LagReader, by_group
from dart_streams.curation.order_tracker import ORDER_ATTEMPTS
from topics import action_requests, training_metrics
from topics.transitions import next_attempt

REFRESH_S = 0.5
LINE_INTERVAL_S = 10.0
POLL_INTERVAL_S = 5.0
CURVE_POINTS = 60
WINDOW_SLICES = 6
RECENT_STEPS = 10
"""Newest optimizer steps over which staleness is shown."""
TRAINING = ("circle", "settle")
"""Phases in which figures of the trainer are of now."""
BARS = "▁▂▃▄▅▆▇█"


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A run's state and its rates of the last half minute.

    ``curve`` has the success rate of training episodes by time slice, None where none finished. ``trained`` has the
    metrics of the newest optimizer step, and staleness is that of the groups of the newest steps at training.
    """

    state: RunState
    steps_per_s: float
    utilization: float
    finished_eval: int
    ordered_eval: int
    curve: tuple[float | None, ...]
    staleness_mean: float | None
    staleness_max: int | None
    trained: Mapping[str, float]


def summarize(progress: RunState, now_ms: int, slots: int, since_ms: int = 0, planned_eval: int = 0) -> RunSummary:
    """Return the summary at ``now_ms`` with a curve from ``since_ms``; ``slots`` counts all environment slots.

    ``planned_eval`` is the number of episodes of the evaluation that is under way.
    """
    newest = now_ms // SLICE_MS
    window = range(newest - WINDOW_SLICES, newest)
    steps = sum(progress.slices[number].steps for number in window if number in progress.slices)
    busy_ms = sum(progress.slices[number].busy_ms for number in window if number in progress.slices)
    for episode in progress.open.values():
        busy_ms += sum(ms for number, ms in split_span(episode.at_ms, now_ms) if number in window)
    recent = [progress.trained[step].metrics for step in sorted(progress.trained)[-RECENT_STEPS:]]
    ages = [row["staleness_mean"] for row in recent if "staleness_mean" in row]
    oldest = [int(row["staleness_max"]) for row in recent if "staleness_max" in row]
    finished_eval, ordered_eval = newest_evaluation(progress)
    return RunSummary(
        state=progress,
        steps_per_s=steps / (WINDOW_SLICES * SLICE_MS / 1000),
        utilization=min(1.0, busy_ms / (slots * WINDOW_SLICES * SLICE_MS)),
        finished_eval=finished_eval,
        ordered_eval=max(planned_eval, ordered_eval),
        curve=success_curve(progress, max(since_ms // SLICE_MS, min(progress.slices, default=newest)), newest),
        staleness_mean=mean_or_none(ages),
        staleness_max=max(oldest, default=None),
        trained=progress.trained[max(progress.trained)].metrics if progress.trained else {},
    )


def newest_evaluation(progress: RunState) -> tuple[int, int]:
    """Return the ended and the ordered episodes of the newest evaluation; (0, 0) before the first."""
    orders = [order for order, _ in progress.orders.values() if order.purpose == "eval"]
    if not orders:
        return 0, 0
    newest = [order for order in orders if order.after_version == orders[-1].after_version]
    ended = {
        (order.group_id, order.sample)
        for order in newest
        if (end := progress.finished.get(order.order_id))
        and next_attempt(end.outcome, order.attempt, ORDER_ATTEMPTS) is None
    }
    return len(ended), sum({order.group_id: order.group_size for order in newest}.values())


def success_curve(progress: RunState, first: int, last: int) -> tuple[float | None, ...]:
    """Return the success rate of each slice in [``first``, ``last``), at most those of the last day."""
    first = max(first, last - MAX_SPAN_MS // SLICE_MS)
    parts = [progress.slices.get(number) for number in range(first, last)]
    return tuple(part.reward / part.rewarded if part and part.rewarded else None for part in parts)


def smooth(values: tuple[float | None, ...], points: int) -> list[float | None]:
    """Shrink a curve to at most ``points`` points by means of equal chunks."""
    if not values:
        return []
    width = max(1, -(-len(values) // points))
    chunks = [[v for v in values[i : i + width] if v is not None] for i in range(0, len(values), width)]
    return [mean_or_none(chunk) for chunk in chunks]


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """The state to display; ``summary`` is None until the topics are read, ``page`` is the address of the web page.

    ``waiting`` says what the run waits for, and ``news`` is the newest line of the process that builds the policy.
    """

    run_id: str
    phase: str
    phase_s: float
    left_s: float | None
    summary: RunSummary | None
    lag: dict[tuple[str, str], int]
    children: tuple[tuple[str, int], ...]
    news: str = ""
    page: str = ""
    waiting: str = ""

    @property
    def trained(self) -> Mapping[str, float]:
        """The metrics of the newest optimizer step while the run trains."""
        return self.summary.trained if self.summary and self.phase in TRAINING else {}


def draw_panel(moment: Moment) -> RenderableType:
    """Draw the live panel."""
    title = f"dart_streams  {moment.run_id}  ·  {moment.phase}  {format_clock(moment.phase_s)}"
    if moment.left_s is not None:
        title += f"  ·  {format_clock(moment.left_s)} left"
    parts: list[RenderableType] = []
    if moment.page:
        parts.append(Text.assemble(("watch    ", "bold"), (moment.page, "cyan")))
    if moment.waiting:
        parts.append(Text(moment.waiting, style="yellow"))
    if moment.summary is not None:
        bars = draw_sparkline(smooth(moment.summary.curve, CURVE_POINTS)) or "(no training episode has finished yet)"
        success = f"  {format_value(moment.summary.state.recent_success, '.0%')} of the last episodes"
        parts.append(Text.assemble(("success  ", "bold"), (bars, "green"), success))
        parts.append(draw_table(moment, moment.summary))
    if moment.news:
        parts.append(Text(moment.news))
    parts.append(draw_processes(moment.children))
    return Panel(Group(*parts), title=title, title_align="left", border_style="cyan", padding=(0, 1))


def draw_table(moment: Moment, summary: RunSummary) -> RenderableType:
    """Draw the summary in two columns of names and values."""
    state = summary.state
    table = Table.grid(padding=(0, 2), expand=True)
    for style in ("dim", "", "dim", ""):
        table.add_column(style=style)
    environment = f"{summary.steps_per_s:.1f} steps/s, slots busy {summary.utilization:.0%}"
    groups = f"{state.groups_curated} curated, {state.groups_consumed} consumed"
    episodes = f"{state.train_finished} finished, {len(state.open)} open"
    version = f"{format_value(state.newest_version)} trained, {format_value(state.served_version)} served"
    evaluation = f"{summary.finished_eval}/{summary.ordered_eval}" if summary.ordered_eval else "none yet"
    stale = f"{format_value(summary.staleness_mean, '.1f')} mean, {format_value(summary.staleness_max)} max"
    lag = ", ".join(f"{group} {records}" for group, records in sorted(open_lag(moment).items())) or "none"
    table.add_row("environment", environment, "groups", groups)
    table.add_row("episodes", episodes, "version", version)
    table.add_row("evaluation", evaluation, "staleness", stale)
    table.add_row("lag", lag, "trainer", format_metrics(moment.trained))
    return table


def open_lag(moment: Moment) -> dict[str, int]:
    """Return the records that each consumer group has yet to process, over all of its topics.

    A group without a supervised process is left out, unless the run supervises none. Of action requests only one per
    open episode counts: requests of ended episodes are dropped.
    """
    living = {name.rpartition("-")[0] or name for name, _ in moment.children}
    result: dict[str, int] = {}
    for (group, topic), records in moment.lag.items():
        if topic == action_requests.TOPIC.name and moment.summary is not None:
            records = min(records, len(moment.summary.state.open))
        if records and (group in living or not living):
            result[group] = result.get(group, 0) + records
    return result


def draw_processes(children: Sequence[tuple[str, int]]) -> RenderableType:
    """List the processes, and their starts where there were several."""
    text = Text("processes  ", style="dim")
    for name, starts in children:
        restarted = f"(started {starts} times)  " if starts > 1 else ""
        text.append(f"{name}  {restarted}", style="yellow" if restarted else "green")
    return text


def format_line(moment: Moment) -> str:
    """Return the summary as one line."""
    left = f", {format_clock(moment.left_s)} left" if moment.left_s is not None else ""
    parts = [f"{moment.phase} {format_clock(moment.phase_s)}{left}"]
    parts += [text for text in (moment.waiting, moment.news) if text]
    parts += summary_parts(moment, moment.summary) if moment.summary else []
    return " | ".join([*parts, *([moment.page] if moment.page else [])])


def summary_parts(moment: Moment, summary: RunSummary) -> list[str]:
    """Return the figures of a line."""
    parts: list[str] = []
    state = summary.state
    if state.steps:
        parts += [f"{summary.steps_per_s:.1f} steps/s", f"slots busy {summary.utilization:.0%}"]
    if summary.ordered_eval and summary.finished_eval < summary.ordered_eval:
        parts.append(f"evaluation {summary.finished_eval}/{summary.ordered_eval}")
    if state.train_finished:
        parts.append(f"{state.train_finished} episodes, success {format_value(state.recent_success, '.0%')}")
        parts.append(f"groups {state.groups_curated} curated, {state.groups_consumed} consumed")
    if (version := state.newest_version) is not None:
        parts.append(f"version {version}, served {format_value(state.served_version)}")
    if moment.trained and summary.staleness_max is not None:
        parts.append(f"staleness {format_value(summary.staleness_mean, '.1f')} max {summary.staleness_max}")
    if moment.trained:
        parts.append(format_metrics(moment.trained))
    if state.steps and (lag := sum(open_lag(moment).values())):
        parts.append(f"lag {lag}")
    return parts


def draw_sparkline(values: list[float | None]) -> str:
    """Draw values in [0, 1] as bars, a gap for None."""
    return "".join(" " if v is None else BARS[min(len(BARS) - 1, int(v * len(BARS)))] for v in values)


def format_metrics(trained: Mapping[str, float]) -> str:
    """Return the headline metrics of the newest optimizer step."""
    metrics = [f"{name} {trained[name]:.3g}" for name in training_metrics.HEADLINES if name in trained]
    return ", ".join(metrics) or "no step yet"


def format_clock(seconds: float) -> str:
    """Return seconds as minutes:seconds."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    return f"{minutes}:{rest:02d}"


def format_value(value: float | None, spec: str = "") -> str:
    """Return a value as text, a dash for None."""
    return "–" if value is None else format(value, spec)


@dataclasses.dataclass
class Display:
    """Shows a run until it is cancelled; ``moment_of`` takes lag."""

    moment_of: Callable[[dict[tuple[str, str], int]], Moment]
    console: Console
    lag: dict[tuple[str, str], int] = dataclasses.field(default_factory=dict, init=False)

    async def show(self) -> None:
        """Refresh the panel, or print a line every few seconds."""
        while not self.console.is_terminal:
            await asyncio.sleep(LINE_INTERVAL_S)
            self.console.print(format_line(self.moment()), soft_wrap=True, highlight=False)
        with Live(draw_panel(self.moment()), console=self.console, auto_refresh=False) as live:
            while True:
                live.update(draw_panel(self.moment()), refresh=True)
                await asyncio.sleep(REFRESH_S)

    async def poll(self, lags: LagReader) -> None:
        """Keep lag up to date until cancelled."""
        while True:
            self.lag = by_group(await lags.read())
            await asyncio.sleep(POLL_INTERVAL_S)

    def moment(self) -> Moment:
        """Return the state to display now."""
        return self.moment_of(self.lag)
