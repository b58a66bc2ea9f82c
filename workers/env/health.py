"""Health of slots, tasks and the host, which decides about their rests. Times are arguments, in seconds.

Only resets count, since they do not depend on the policy. A failed reset counts for its slot, its task and its host;
other resets distinguish the cause:

- a slot rests after ``SLOT.after`` consecutive failures: its machine may fail;
- a task is set aside after ``TASK.after``, if another task's reset has succeeded since the first of them;
- a host is drained after ``HOST.after`` over at least ``HOST_SPAN_S``, of two or more tasks (or the only one). The time
  span excludes the restart of a browser, at which all slots fail at once.

Each rest is twice as long as the previous one. It ends with a trial: a success clears the record, a failure begins the
next rest.
"""

import msgspec

SMOOTHING = 0.1
"""Weight of the newest attempt in a fault score."""


class RestRule(msgspec.Struct, frozen=True):
    """Consecutive failures before a rest, and the first and the longest rest in seconds."""

    after: int
    first_s: float
    longest_s: float

    def rest_s(self, failures: int) -> float:
        """Return the rest after this number of consecutive failures."""
        if failures < self.after:
            return 0.0
        return min(self.first_s * 2.0 ** min(failures - self.after, 32), self.longest_s)


SLOT = RestRule(after=3, first_s=2.0, longest_s=120.0)
TASK = RestRule(after=3, first_s=60.0, longest_s=3600.0)
HOST = RestRule(after=8, first_s=15.0, longest_s=600.0)
HOST_SPAN_S = 10.0


class AttemptRecord(msgspec.Struct, frozen=True):
    """Attempts of a slot, task or host: consecutive failures, the last reason, and the end of its rest.

    ``score`` is the exponentially weighted share of failures, ``since_s`` the time of the first consecutive failure.
    With ``lethal`` the failures are workers that a task has ended.
    """

    failures: int = 0
    reason: str = ""
    rests_until_s: float = 0.0
    score: float = 0.0
    since_s: float = 0.0
    lethal: bool = False

    def failed(self, reason: str, now_s: float) -> "AttemptRecord":
        """Return the record after a failure."""
        since_s = self.since_s if self.failures else now_s
        score = self.score + SMOOTHING * (1.0 - self.score)
        return AttemptRecord(self.failures + 1, reason, self.rests_until_s, score, since_s)

    def succeeded(self) -> "AttemptRecord":
        """Return the record after a success."""
        return AttemptRecord(score=self.score * (1.0 - SMOOTHING))

    def resting(self, rule: RestRule, now_s: float) -> "AttemptRecord":
        """Return the record at the beginning of a rest."""
        return msgspec.structs.replace(self, rests_until_s=now_s + rule.rest_s(self.failures))

    def rests(self, now_s: float) -> bool:
        """Return whether it rests."""
        return now_s < self.rests_until_s


class Rest(msgspec.Struct, frozen=True):
    """A decision: ``kind`` (slot, task or host) ``name`` rests for ``rest_s``."""

    kind: str
    name: str
    rest_s: float
    failures: int
    reason: str
    lethal: bool = False


class WorkerHealth:
    """The records of one worker; ``tasks_in_all`` is the number of tasks in its task set."""

    def __init__(self, tasks_in_all: int) -> None:
        self.needed = min(2, max(1, tasks_in_all))
        self.host = AttemptRecord()
        self.slots: dict[int, AttemptRecord] = {}
        self.tasks: dict[str, AttemptRecord] = {}
        self._failing: set[str] = set()
        self._newest: dict[str, float] = {}

    def reset_succeeded(self, slot: int, task_id: str, now_s: float) -> None:
        """Record a successful reset."""
        self.host = self.host.succeeded()
        self.slots[slot] = self.slots.get(slot, AttemptRecord()).succeeded()
        self._failing.clear()
        self._newest[task_id] = now_s
        if (record := self.tasks.get(task_id)) is not None:
            self.tasks[task_id] = record.succeeded()

    def reset_failed(self, slot: int, task_id: str, reason: str, now_s: float) -> list[Rest]:
        """Record a failed reset; return the rests that it causes."""
        before = self.host.rests_until_s
        self.host = self.host.failed(reason, now_s)
        self.slots[slot] = self.slots.get(slot, AttemptRecord()).failed(reason, now_s)
        self.tasks[task_id] = self.tasks.get(task_id, AttemptRecord()).failed(reason, now_s)
        self._failing.add(task_id)
        lasted = now_s - self.host.since_s >= HOST_SPAN_S
        if self.host.failures >= HOST.after and lasted and len(self._failing) >= self.needed:
            if now_s < before:
                return []  # It is drained already; this reset was running.
            return [self._drain(now_s)]
        return [rest for rest in (self._rest_slot(slot, now_s), self._set_aside(task_id, now_s)) if rest is not None]

    def refusal(self, task_id: str, now_s: float) -> str:
        """Return why an order of this task is rejected, empty if it is played."""
        record = self.tasks.get(task_id)
        if record is None or not record.rests(now_s):
            return ""
        reason = record.reason
        if not record.lethal:
            reason = f"its set-up failed {record.failures} times in a row, while other tasks' succeeded; last: {reason}"
        return f"set aside on this host for another {record.rests_until_s - now_s:.0f} s: {reason}"

    def ended_workers(self, task_id: str, times: int, reason: str, now_s: float) -> Rest:
        """Set aside a task of which ``times`` orders repeatedly ended their workers; return the rest."""
        record = AttemptRecord(TASK.after + times - 1, reason, since_s=now_s, lethal=True).resting(TASK, now_s)
        self.tasks[task_id] = record
        return rest("task", task_id, record, TASK)

    def slot_rest_s(self, slot: int, now_s: float) -> float:
        """Return the remaining rest of a slot."""
        return max(0.0, self.slots.get(slot, AttemptRecord()).rests_until_s - now_s)

    @property
    def on_trial(self) -> bool:
        """Whether no reset has succeeded since the host was drained; one slot tries."""
        return self.host.rests_until_s > 0.0

    def _drain(self, now_s: float) -> Rest:
        self.host = self.host.resting(HOST, now_s)
        for task_id in self._failing:  # The host was the cause: their records are cleared.
            self.tasks.pop(task_id, None)
        self.slots.clear()
        return rest("host", "", self.host, HOST)

    def _rest_slot(self, slot: int, now_s: float) -> Rest | None:
        record = self.slots[slot]
        if record.failures < SLOT.after:
            return None
        self.slots[slot] = record.resting(SLOT, now_s)
        return rest("slot", str(slot), record, SLOT)

    def _set_aside(self, task_id: str, now_s: float) -> Rest | None:
        record = self.tasks[task_id]
        others = max((at_s for other, at_s in self._newest.items() if other != task_id), default=-1.0)
        if record.failures < TASK.after or others < record.since_s or record.rests(now_s):
            return None
        self.tasks[task_id] = record.resting(TASK, now_s)
        return rest("task", task_id, record, TASK)


def rest(kind: str, name: str, record: AttemptRecord, rule: RestRule) -> Rest:
    """Return the decision for a record."""
    return Rest(kind, name, rule.rest_s(record.failures), record.failures, record.reason, record.lethal)
