"""The figures of a run's progress at one moment: what the live display and the progress lines show. Pure."""

import itertools

import msgspec

from dart_streams.history.run_state import SLICE_MS, RunState, overlaps
from dart_streams.history.statistics import mean

WINDOW_SLICES = 6
RECENT_EPISODES = 200
RECENT_MEMBERS = 128


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Rates are over the last half minute, ``success`` over the last finished training episodes.

    ``curve`` has the success rate of training episodes a time slice, None where none finished.
    """

    steps: int
    steps_per_s: float
    utilisation: float
    episodes: int
    finished_eval: int
    ordered_eval: int
    open_episodes: int
    success: float | None
    curve: tuple[float | None, ...]
    groups: int
    groups_consumed: int
    version: int | None
    served: int | None
    staleness_mean: float | None
    staleness_max: int | None
    pause_ms: float | None
    by_outcome: dict[str, int]


def summarise(progress: RunState, now_ms: int, slots: int, since_ms: int = 0) -> Summary:
    """Return the figures at ``now_ms``; the curve begins at ``since_ms``. ``slots`` counts all environment slots."""
    newest = now_ms // SLICE_MS
    window = range(newest - WINDOW_SLICES, newest)
    busy_ms = sum(progress.slices[number].busy_ms for number in window if number in progress.slices)
    for episode in progress.open.values():
        busy_ms += sum(ms for number, ms in overlaps(episode.started_ms, now_ms) if number in window)
    train = [trajectory for trajectory in progress.finished.values() if trajectory.purpose == "train"]
    recent = list(itertools.islice(reversed(train), RECENT_EPISODES))
    ages = progress.curated_staleness[-RECENT_MEMBERS:]
    evaluated = newest_evaluation(progress)
    by_outcome: dict[str, int] = {}
    for trajectory in train:
        by_outcome[trajectory.outcome] = by_outcome.get(trajectory.outcome, 0) + 1
    return Summary(
        steps=progress.steps,
        steps_per_s=sum(progress.slices[n].steps for n in window if n in progress.slices)
        / (WINDOW_SLICES * SLICE_MS / 1000),
        utilisation=min(1.0, busy_ms / (slots * WINDOW_SLICES * SLICE_MS)),
        episodes=len(train),
        finished_eval=evaluated[0],
        ordered_eval=evaluated[1],
        open_episodes=len(progress.open),
        success=mean([t.reward for t in recent if t.reward is not None]),
        curve=curve(progress, max(since_ms // SLICE_MS, min(progress.slices, default=newest)), newest),
        groups=len(progress.groups),
        groups_consumed=progress.groups_consumed,
        version=progress.newest_version,
        served=progress.served_version,
        staleness_mean=mean(ages),
        staleness_max=max(ages, default=None),
        pause_ms=progress.switches[-1].pause_ms if progress.switches else None,
        by_outcome=by_outcome,
    )


def newest_evaluation(progress: RunState) -> tuple[int, int]:
    """Return how many episodes of the newest evaluation have a result, and how many there are; (0, 0) before any."""
    orders = [order for order, _ in progress.orders.values() if order.purpose == "eval"]
    if not orders:
        return 0, 0
    newest = orders[-1].group_id
    done = {
        order.sample
        for order in orders
        if order.group_id == newest
        and (finished := progress.finished.get(order.order_id))
        and finished.reward is not None
    }
    return len(done), orders[-1].group_size


def curve(progress: RunState, first: int, last: int) -> tuple[float | None, ...]:
    """Return the success rate of each slice from ``first`` to before ``last``."""
    parts = [progress.slices.get(number) for number in range(first, last)]
    return tuple(part.reward / part.rewarded if part and part.rewarded else None for part in parts)


def smooth(values: tuple[float | None, ...], points: int) -> list[float | None]:
    """Shrink a curve to at most ``points`` points, each the mean of what it stands for."""
    if not values:
        return []
    width = max(1, -(-len(values) // points))
    chunks = [[v for v in values[i : i + width] if v is not None] for i in range(0, len(values), width)]
    return [mean(chunk) for chunk in chunks]


BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: list[float | None]) -> str:
    """Draw values in [0, 1] as bars, a gap for None."""
    return "".join(" " if v is None else BARS[min(len(BARS) - 1, int(v * len(BARS)))] for v in values)
