"""The monitor: reports stalled topics, and measures the lag of every consumer group.

=============  ==================================================================================================
consumes       every topic of the circle (whole, without a group); the offsets that the groups have committed
produces       nothing but logs and metrics
waits for      records; a topic that is silent for ``telemetry.stall_s`` is reported with its producers
unblocked by   the producers of the topics
=============  ==================================================================================================

It can be killed, started twice or left out: nothing depends on it.
"""

import asyncio
import contextlib
import functools
from typing import Any

import structlog
from opentelemetry import metrics

from console.runs.run_follower import CIRCLE, TopicFollower, follow_activity
from console.runs.topic_activity import ActivityState, Stall, explain_stall, find_stalls
from dart_streams.background import wait_at_most
from dart_streams.bus.clients import Publisher
from dart_streams.bus.lag import LagReader, by_group, lag_reader
from dart_streams.bus.topic_watch import watch_topics
from dart_streams.config import Config
from dart_streams.telemetry import names
from dart_streams.telemetry.instruments import create_counter, create_gauge
from workers.runtime import lifecycle

REPORT_INTERVAL_S = 5.0

log = structlog.get_logger()
meter = metrics.get_meter(names.METER)
lag_gauge = create_gauge(meter, names.MONITOR_LAG)
silent_gauge = create_gauge(meter, names.MONITOR_SILENT_S)
stall_counter = create_counter(meter, names.MONITOR_STALLS)


async def connect(config: Config, worker_id: str, resources: contextlib.AsyncExitStack) -> lifecycle.Worker:
    """Connect the monitor; raise ServiceUnavailable if the broker does not answer or has no topics in time."""
    publisher = await resources.enter_async_context(Publisher(config.bus, worker_id))
    follower = await resources.enter_async_context(follow_activity(config.bus, publisher))
    lags = await resources.enter_async_context(lag_reader(config.bus))
    assert follower.reader is not None
    reader = follower.reader
    background: dict[str, Any] = {
        "reader": lambda: reader,
        "topics": functools.partial(watch_topics, publisher, CIRCLE),
    }
    return lifecycle.Worker(functools.partial(report, follower, lags, config.telemetry.stall_s), background)


async def report(follower: TopicFollower[ActivityState], lags: LagReader, stall_s: float, stop: asyncio.Event) -> None:
    """Measure lag and silence until ``stop`` is set; report topics that are silent for ``stall_s``."""
    reporter = StallReporter()
    while not stop.is_set():
        now_s = follower.clock()
        behind = by_group(await lags.read())
        for (group, topic), records in behind.items():
            lag_gauge.set(records, {"group": group, "topic": topic})
        for topic in follower.progress.activity:
            last_s = follower.arrivals[topic].at_s if topic in follower.arrivals else follower.since_s
            silent_gauge.set(now_s - last_s, {"topic": topic})
        silent = find_stalls(follower.progress.activity, follower.arrivals, follower.since_s, now_s, stall_s)
        reporter.report(silent, behind)
        await wait_at_most(stop, REPORT_INTERVAL_S)


class StallReporter:
    """Reports the begin of a stall, each doubling of its length, and its end."""

    def __init__(self) -> None:
        self.again_at_s: dict[str, float] = {}

    def report(self, found: list[Stall], behind: dict[tuple[str, str], int]) -> None:
        """Log new and ended stalls."""
        for topic in self.again_at_s.keys() - {stall.topic for stall in found}:
            del self.again_at_s[topic]
            log.info("moving again", topic=topic)
        for stall in found:
            if stall.silent_s < self.again_at_s.get(stall.topic, 0.0):
                continue
            self.again_at_s[stall.topic] = 2 * stall.silent_s
            stall_counter.add(1, {"topic": stall.topic})
            lag = {f"{group} on {topic}": records for (group, topic), records in behind.items() if records}
            log.warning(
                "stalled",
                topic=stall.topic,
                silent_s=stall.silent_s,
                last_from=stall.last_from,
                last_record=stall.last_record,
                reason=explain_stall(stall),
                behind=lag,
            )
