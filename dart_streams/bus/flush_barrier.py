"""A flush barrier: returns once a consumer group has processed all present records of a topic.

Stages publish before they commit, so a chain of stages is passed in order. Offsets decide, not clocks: a stage that is
down only delays the barrier.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

from aiokafka.errors import KafkaError

from dart_streams.bus.lag import LagReader
from dart_streams.telemetry.stall_detector import StallDetector
from topics import Topic

POLL_INTERVAL_S = 1.0


class Stage(NamedTuple):
    """A topic and the consumer group that processes it."""

    topic: Topic
    group: str


def unprocessed_offsets(ends: Mapping[int, int], processed: Mapping[int, int]) -> dict[int, int]:
    """Return the processed offsets of partitions that are below their end."""
    reached = {partition: processed.get(partition, 0) for partition in ends}
    return {partition: offset for partition, offset in reached.items() if offset < ends[partition]}


def describe_stage(stage: Stage, ends: Mapping[int, int], missing: Mapping[int, int]) -> str:
    """Return the remaining records of a stage, as text."""
    places = [
        f"{stage.topic.name}[{partition}] is committed up to {offset} of {ends[partition]}"
        for partition, offset in sorted(missing.items())
    ]
    return f"group {stage.group} to process records: {', '.join(places)}"


class FlushBarrier:
    """Passes stages; a wait without progress for ``stall_s`` is logged with stage and offsets."""

    def __init__(self, offsets: LagReader, log: Any, stall_s: float) -> None:
        self.offsets = offsets
        self.log = log
        self.stall_s = stall_s

    async def passed(self, stage: Stage) -> None:
        """Return once the present records of the stage's topic are processed."""
        clock = asyncio.get_running_loop().time
        waiting = StallDetector(self.log, f"the broker to say what {stage.topic.name} has", self.stall_s, clock)
        ends: dict[int, int] | None = None
        before: dict[int, int] | None = None
        while True:
            try:
                now = await self.offsets.progress(stage.group, stage.topic)
            except (KafkaError, OSError) as error:
                waiting.last_from = f"no broker ({type(error).__name__})"
            else:
                present = {partition: progress.end for partition, progress in now.items()}
                # Those of a recreated topic may be lower than the first ones.
                ends = {place: min(end, present.get(place, 0)) for place, end in (ends or present).items()}
                missing = unprocessed_offsets(ends, {place: progress.processed for place, progress in now.items()})
                if not missing:
                    return
                if missing != before:
                    waiting.note_arrival(f"group {stage.group}")
                before, waiting.what = missing, describe_stage(stage, ends, missing)
            waiting.check()
            await asyncio.sleep(POLL_INTERVAL_S)
