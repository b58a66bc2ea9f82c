"""The metrics of an environment worker."""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Literal

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

from dart_streams.telemetry import names
from dart_streams.telemetry.instruments import (
    ObservedCounter,
    create_counter,
    create_gauge,
    create_histogram,
    observe_counter,
    observe_gauge,
)

State = Literal["idle", "reset", "wait", "step", "evaluate"]
"""State of a slot; ``wait`` is the time for an action, including the transport of its screenshot and events."""

meter = metrics.get_meter(names.METER)
episodes = ObservedCounter(meter, names.ENV_EPISODES)
steps = ObservedCounter(meter, names.ENV_STEPS)
reset_ms = create_histogram(meter, names.ENV_RESET_MS)
execute_ms = create_histogram(meter, names.ENV_EXECUTE_MS)
evaluate_ms = create_histogram(meter, names.ENV_EVALUATE_MS)
compress_ms = create_histogram(meter, names.ENV_COMPRESS_MS)
blob_write_ms = create_histogram(meter, names.ENV_BLOB_WRITE_MS)
request_ms = create_histogram(meter, names.ENV_REQUEST_MS)
overhead_ms = create_histogram(meter, names.ENV_OVERHEAD_MS)
sent = ObservedCounter(meter, names.ENV_REQUESTS_SENT)
answered = ObservedCounter(meter, names.ENV_REQUESTS_ANSWERED)
timed_out = ObservedCounter(meter, names.ENV_REQUESTS_TIMED_OUT)
abandoned = ObservedCounter(meter, names.ENV_REQUESTS_ABANDONED)
ignored = ObservedCounter(meter, names.ENV_REPLIES_IGNORED)
answers_wrong = ObservedCounter(meter, names.ENV_ANSWERS_WRONG)
browser_restarts = create_counter(meter, names.ENV_BROWSER_RESTARTS)
browser_memory = create_counter(meter, names.ENV_BROWSER_MEMORY)
documents_loaded = ObservedCounter(meter, names.ENV_DOCUMENTS_LOADED)
problems_restarted = ObservedCounter(meter, names.ENV_PROBLEMS_RESTARTED)
sandboxes_started = ObservedCounter(meter, names.ENV_SANDBOXES_STARTED)
desktops_prepared = ObservedCounter(meter, names.ENV_DESKTOPS_PREPARED)
desktops_restless = ObservedCounter(meter, names.ENV_DESKTOPS_RESTLESS)
rests = ObservedCounter(meter, names.ENV_RESTS)
orders_set_aside = ObservedCounter(meter, names.ENV_ORDERS_SET_ASIDE)
fault_score = create_gauge(meter, names.ENV_FAULT_SCORE)


class SlotTimes:
    """Time that the slots have spent in each state."""

    def __init__(self, slots: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._spent: Counter[State] = Counter()
        self._now: list[tuple[State, float]] = [("idle", clock())] * slots

    def enter(self, slot: int, state: State) -> None:
        """Set the state of slot ``slot``."""
        before, since = self._now[slot]
        now = self.clock()
        self._spent[before] += now - since  # type: ignore[assignment]
        self._now[slot] = (state, now)

    @property
    def busy(self) -> int:
        """Number of slots with an episode in flight."""
        return sum(state != "idle" for state, _ in self._now)

    def spent_ms(self) -> dict[State, float]:
        """Return slot time by state, in milliseconds."""
        total: Counter[State] = Counter(self._spent)
        now = self.clock()
        for state, since in self._now:
            total[state] += now - since  # type: ignore[assignment]
        return {state: seconds * 1000 for state, seconds in total.items()}

    def export(self) -> None:
        """Register the metrics of these times."""

        def times(_options: CallbackOptions) -> Iterable[Observation]:
            return [Observation(spent_ms, {"state": state}) for state, spent_ms in self.spent_ms().items()]

        observe_counter(meter, names.ENV_SLOT_MS, times)
        observe_gauge(meter, names.ENV_SLOTS, lambda _: [Observation(len(self._now))])
        observe_gauge(meter, names.ENV_SLOTS_BUSY, lambda _: [Observation(self.busy)])
