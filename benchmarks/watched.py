"""What a viewer of the web page costs the circle: one run, in which blocks with and without a viewer alternate. Pure.

Only the second part of a block counts: the page goes on reading for a minute after its last viewer has gone, and a
viewer that comes has it read the whole run first. Neighbouring blocks are compared, so a run that speeds up or slows
down as it learns does not count for or against.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from dart_streams.console.runs.process_usage import ProcessUsage, spent
from dart_streams.console.runs.time_slices import SLICE_MS, TimeSlice
from dart_streams.console.views.page.live_source import IDLE_S

SETTLED_S = IDLE_S + 10.0
"""Of a block, so much at its beginning does not count."""
T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
"""Student's t for a 95 % interval, by degrees of freedom from 1; from there on 2."""


class Block(msgspec.Struct, frozen=True):
    """A span of the run (epoch milliseconds), watched or not, and what the viewer was sent in it."""

    watched: bool
    start_ms: int
    end_ms: int
    messages: int = 0
    screens: int = 0

    @property
    def counted_ms(self) -> tuple[int, int]:
        """The span that counts."""
        return self.start_ms + int(SETTLED_S * 1000), self.end_ms


class MeasuredBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A block: environment steps a second, and the page's CPU as a share of a core."""

    watched: bool
    seconds: float
    steps_per_s: float
    page_cpu: float
    messages: int = 0
    screens: int = 0


def measured(block: Block, slices: Mapping[int, TimeSlice], usage: Sequence[ProcessUsage]) -> MeasuredBlock:
    """Return what a block had, by the whole time slices in the part of it that counts.

    Raises
    ------
    ValueError
        If no whole slice is in it (the block was too short), or a viewer was sent nothing.
    """
    if block.watched and not (block.messages and block.screens):
        sent = f"{block.messages} messages and {block.screens} screens"
        raise ValueError(f"the viewer was sent {sent}: nothing was watched")
    start_ms, end_ms = block.counted_ms
    numbers = range(-(-start_ms // SLICE_MS), end_ms // SLICE_MS)
    if not numbers:
        length_s = (block.end_ms - block.start_ms) / 1000
        raise ValueError(f"a block of {length_s:.0f} s is too short: {SETTLED_S:g} s do not count")
    seconds = len(numbers) * SLICE_MS / 1000
    steps = sum(slices[number].steps for number in numbers if number in slices)
    cpu_s = spent(usage, numbers[0] * SLICE_MS, (numbers[-1] + 1) * SLICE_MS).get("ui", 0.0)
    return MeasuredBlock(
        watched=block.watched,
        seconds=seconds,
        steps_per_s=steps / seconds,
        page_cpu=round(cpu_s / seconds, 4),
        messages=block.messages,
        screens=block.screens,
    )


def summary(blocks: Sequence[MeasuredBlock]) -> dict[str, Any]:
    """Return the blocks, and the cost: by how much less a watched block does than its neighbours without a viewer.

    ``cost`` is a share with its 95 % interval (Student's t over the pairs of neighbours; null for fewer than two).
    """
    costs = [cost(one, two) for one, two in pairwise(blocks) if one.watched != two.watched]
    mean = statistics.mean(costs) if costs else None
    spread = half_width(costs)
    return {
        "blocks": blocks,
        "pairs": len(costs),
        "cost": mean,
        "cost_low": mean - spread if mean is not None and spread is not None else None,
        "cost_high": mean + spread if mean is not None and spread is not None else None,
        "page_cpu": {
            "watched": average([block.page_cpu for block in blocks if block.watched]),
            "alone": average([block.page_cpu for block in blocks if not block.watched]),
        },
    }


def cost(one: MeasuredBlock, two: MeasuredBlock) -> float:
    """Return by what share the watched one of two blocks does less than the other."""
    watched, alone = (one, two) if one.watched else (two, one)
    return 1 - watched.steps_per_s / alone.steps_per_s


def half_width(values: Sequence[float]) -> float | None:
    """Return half of the 95 % interval of a mean; None of fewer than two values."""
    if len(values) < 2:
        return None
    freedom = len(values) - 1
    quantile = T_95[freedom - 1] if freedom <= len(T_95) else 2.0
    return quantile * statistics.stdev(values) / math.sqrt(len(values))


def average(values: Sequence[float]) -> float | None:
    """Return the mean, None of nothing."""
    return round(statistics.mean(values), 4) if values else None
