"""Folds a run's topics into its state, and waits for conditions on it."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Collection

from aiokafka import AIOKafkaConsumer

from dart_streams.bus.clients import Publisher, open_topics
from dart_streams.bus.lag import Lag, lag_reader
from dart_streams.config import Bus
from dart_streams.console.runs import open_orders
from dart_streams.console.runs.run_state import Retention, RunState
from dart_streams.console.runs.stalls import LastArrival, describe_stall, find_stalls
from dart_streams.console.runs.topic_follower import DECODED, FETCH_MS, FOLLOWED, TopicFollower, keep_reading
from dart_streams.deadline import Deadline
from dart_streams.errors import ServiceUnavailable
from dart_streams.telemetry.stall_detector import StallDetector
from topics import Topic, weights_serving

HEARTBEAT = weights_serving.TOPIC.name
"""Workers repeat its records, which are no activity."""
FINAL_READ_S = 60.0
LAGS_S = 20.0
LAGS_PAUSE_S = 0.5
ANNOUNCED_S = 10.0
"""Time for the recorder to announce an ended trajectory; then its order is lost."""


class RunFollower(TopicFollower[RunState]):
    """The state of a running run, bounded by ``keep``. :func:`follow_run` keeps one up to date."""

    def __init__(
        self,
        bus: Bus,
        records: AIOKafkaConsumer,
        stall_s: float,
        decoded: Collection[str] = DECODED,
        keep: Retention | None = None,
    ) -> None:
        super().__init__(bus, records, RunState(keep=keep), decoded)
        self.stall_s = stall_s
        self._records_seen = 0

    async def read_final(self) -> list[Lag] | None:
        """Stop the reader task, read the topics to their ends, and return each group's lag, None if unknown.

        Env workers commit an order when they have published its episode's end. The recorder's trajectory comes later,
        and is awaited.

        Raises ServiceUnavailable if the broker does not answer within :data:`FINAL_READ_S`.
        """
        lags = await self.read_lags()
        await self.stop()
        try:
            async with asyncio.timeout(FINAL_READ_S):
                await self.read_to_end()
        except TimeoutError:
            reason = f"the end of the run's topics could not be read within {FINAL_READ_S:.0f} s; is the broker up?"
            raise ServiceUnavailable(reason) from None
        deadline = Deadline(ANNOUNCED_S)
        while open_orders.lost_orders(self.progress, lags) and not deadline.expired:
            await self.poll()
        return lags

    async def read_lags(self) -> list[Lag] | None:
        """Return each group's lag, None if the broker does not answer within :data:`LAGS_S`."""
        deadline = Deadline(LAGS_S)
        async with lag_reader(self.bus) as reader:
            while (lags := await reader.read()) is None:
                if deadline.expired:
                    self.log.warning("committed offsets not read", bound_s=LAGS_S, effect="lost orders are not known")
                    break
                await asyncio.sleep(LAGS_PAUSE_S)
        return lags

    def raise_if_reader_failed(self) -> None:
        """Raise the reader task's exception if it has ended."""
        if self.reader is not None and self.reader.done():
            self.reader.result()
            raise ServiceUnavailable("the run's topics are not read any more")

    async def until(
        self, condition: Callable[[RunState], bool], what: str, timeout_s: float, advice: str = ""
    ) -> RunState:
        """Return when ``condition`` holds; meanwhile log silences above the stall bound.

        Raises ServiceUnavailable if ``condition`` does not hold in time.
        """
        deadline = Deadline(timeout_s)
        waiting = StallDetector(self.log, what, self.stall_s)
        while not condition(self.progress):
            if deadline.expired:
                raise ServiceUnavailable(
                    f"waited {timeout_s:.0f} s for {what}; the last record came from {waiting.last_from}. {advice}"
                )
            self.raise_if_reader_failed()
            changed = self.changed
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(1.0, deadline.remaining_s)):
                    await changed.wait()
            self.check(waiting, what)
        return self.progress

    def check(self, waiting: StallDetector, what: str) -> None:
        """Update a stall detector with the newest activity, and log a silence with its probable cause."""
        activity = [(topic, of_topic) for topic, of_topic in self.progress.activity.items() if topic != HEARTBEAT]
        seen = sum(a.records for _, a in activity)
        if seen and seen != self._records_seen:
            self._records_seen = seen
            before = LastArrival(-math.inf, "")
            _, topic, sender = max((self.arrivals.get(topic, before).at_s, topic, a.sender) for topic, a in activity)
            waiting.note_arrival(f"{self.arrivals.get(topic, before).sender or sender or 'someone'} on {topic}")
        silent = find_stalls(self.progress.activity, self.arrivals, self.since_s, self.clock(), self.stall_s)
        waiting.what = f"{what} ({describe_stall(silent[0])})" if silent else what
        waiting.check()


@contextlib.asynccontextmanager
async def follow_run(
    bus: Bus,
    publisher: Publisher,
    stall_s: float,
    topics: tuple[Topic, ...] = FOLLOWED,
    keep: Retention | None = None,
) -> AsyncIterator[RunFollower]:
    """Yield a follower that has read the topics and keeps reading."""
    async with open_topics(bus, publisher, topics, FETCH_MS) as records:
        follower = RunFollower(bus, records, stall_s, keep=keep)
        async with keep_reading(follower):
            yield follower
