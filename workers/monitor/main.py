"""The monitor: says where the circle stands still, and measures how far everyone is behind.

=============  ==================================================================================================
consumes       every topic of the circle (whole, without a group); the broker's account of the consumer groups
produces       nothing but logs and metrics
waits for      records; a topic that is silent for ``telemetry.stall_s`` is reported with who should write it
unblocked by   whoever writes
=============  ==================================================================================================

It can be killed, started twice or left out: nothing depends on it.
"""

import asyncio
import time

import structlog
from opentelemetry import metrics

from dart_streams.bus.clients import Publisher
from dart_streams.bus.lag import LagReader, by_group, lag_reader
from dart_streams.config import Config
from dart_streams.history.run_follower import CIRCLE, RunFollower, following
from dart_streams.history.stalls import Stall, stalls, words
from dart_streams.telemetry import names, setup
from workers.runtime.lifecycle import cancel_on_stop, run_until_first_exit, stop_on_signals

LOOK_S = 2.0

log = structlog.get_logger()
meter = metrics.get_meter(names.METER)
lag_gauge = meter.create_gauge(names.MONITOR_LAG)
silent_gauge = meter.create_gauge(names.MONITOR_SILENT_S, "s")
stall_counter = meter.create_counter(names.MONITOR_STALLS)


def run(config: Config, worker_id: str) -> int:
    """Be the monitor until SIGTERM or SIGINT; return the exit code.

    Raises
    ------
    ServiceUnavailable
        If the broker does not answer, or has no topics, within its bound.
    """
    setup.start(config, worker_id)
    try:
        return asyncio.run(live(config, worker_id))
    finally:
        setup.stop()


async def live(config: Config, worker_id: str) -> int:
    """Connect, look around until told to stop."""
    stop = stop_on_signals()
    await cancel_on_stop(stop, follow(config, worker_id))
    return 0


async def follow(config: Config, worker_id: str) -> None:
    """Read the topics, and look at what they add up to every little while."""
    async with (
        Publisher(config.bus, worker_id) as publisher,
        following(config.bus, publisher, config.telemetry.stall_s, CIRCLE) as watch,
        lag_reader(config.bus) as lags,
    ):
        assert watch.reader is not None
        await run_until_first_exit(look(watch, lags), reader=watch.reader)


async def look(watch: RunFollower, lags: LagReader) -> None:
    """Measure and report for ever."""
    since_ms = int(time.time() * 1000)
    reporter = StallReporter()
    while True:
        now_ms = int(time.time() * 1000)
        behind = by_group(await lags.read())
        for (group, topic), records in behind.items():
            lag_gauge.set(records, {"group": group, "topic": topic})
        for topic, activity in watch.progress.activity.items():
            silent_gauge.set((now_ms - activity.at_ms) / 1000, {"topic": topic})
        reporter.report(stalls(watch.progress.activity, since_ms, now_ms, watch.stall_s), behind)
        await asyncio.sleep(LOOK_S)


class StallReporter:
    """Reports a stall when it begins, whenever it has doubled, and when it is over."""

    def __init__(self) -> None:
        self.again_at_s: dict[str, float] = {}

    def report(self, found: list[Stall], behind: dict[tuple[str, str], int]) -> None:
        """Log what is new."""
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
                why=words(stall),
                behind=lag,
            )
