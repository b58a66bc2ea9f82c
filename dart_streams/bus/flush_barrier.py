"""A flush barrier: returns once all that a topic has now is processed by the group that reads it.

A stage that publishes before it commits has then published whatever comes of these records, so a chain of stages is
passed one after the other. Offsets decide, no clock does: a stage that is away only delays the barrier.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

from aiokafka.errors import KafkaError

from dart_streams.bus.lag import LagReader
from dart_streams.telemetry.stall_detector import StallDetector
from topics import Topic

POLL_INTERVAL_S = 1.0
"""Time between two looks at the committed offsets."""


class Stage(NamedTuple):
    """A topic, and the consumer group that processes its records."""

    topic: Topic
    group: str


def unprocessed_offsets(ends: Mapping[int, int], processed: Mapping[int, int]) -> dict[int, int]:
    """Return the partitions of which records below ``ends`` are not processed, each with the offset that is reached."""
    reached = {partition: processed.get(partition, 0) for partition in ends}
    return {partition: offset for partition, offset in reached.items() if offset < ends[partition]}


def clamp_ends(ends: Mapping[int, int] | None, now: Mapping[int, int]) -> dict[int, int]:
    """Return the ends to wait for: the first ones, or what is there of them now. A topic made anew has less."""
    return (
        dict(now) if ends is None else {partition: min(end, now.get(partition, 0)) for partition, end in ends.items()}
    )


def describe_stage(stage: Stage, ends: Mapping[int, int], missing: Mapping[int, int]) -> str:
    """Return what a stage has still to process, in words."""
    places = [
        f"{stage.topic.name}[{partition}] is committed up to {offset} of {ends[partition]}"
        for partition, offset in sorted(missing.items())
    ]
    return f"group {stage.group} to process records: {', '.join(places)}"


class FlushBarrier:
    """Passes stages; a wait in which nothing moves for ``stall_s`` is logged with its stage and its offsets."""

    def __init__(self, offsets: LagReader, log: Any, stall_s: float) -> None:
        self.offsets = offsets
        self.log = log
        self.stall_s = stall_s

    async def passed(self, stage: Stage) -> None:
        """Return when what the stage's topic has now is processed."""
        clock = asyncio.get_running_loop().time
        waiting = StallDetector(self.log, f"the broker to say what {stage.topic.name} has", self.stall_s, clock)
        ends: dict[int, int] | None = None
        before: dict[int, int] | None = None
        while True:
            try:
                now = await self.offsets.progress(stage.group, stage.topic)
            except (KafkaError, OSError) as error:
                waiting.last_from = f"nobody ({type(error).__name__})"
            else:
                ends = clamp_ends(ends, {partition: one.end for partition, one in now.items()})
                missing = unprocessed_offsets(ends, {partition: one.processed for partition, one in now.items()})
                if not missing:
                    return
                if missing != before:
                    waiting.note_arrival(f"group {stage.group}")
                before, waiting.what = missing, describe_stage(stage, ends, missing)
            waiting.check()
            await asyncio.sleep(POLL_INTERVAL_S)
