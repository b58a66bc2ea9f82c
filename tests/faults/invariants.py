"""Invariants of a run after any fault, read from its topics, its store and its offsets.

:func:`broken` is a function of the log and of the offsets; :func:`differing` of rows. Usage:
``python -m tests.faults.invariants FOLDER [--live]`` with a run's folder; ``--live`` if its workers still run. It
prints what is broken as JSON; the exit code is 1 then.
"""

import asyncio
import itertools
import json
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence, Set
from pathlib import Path
from typing import Any, TypeVar

import msgspec

import topics
from console.bundles.capture import capture
from console.bundles.replay import replay
from console.repair import projection
from console.repair.projection import ProjectedRow
from console.runs import open_orders
from console.runs.bundle import Bundle, BundleError
from console.runs.run_folder import RunFolder
from console.runs.run_follower import ANNOUNCED_S
from console.runs.run_log import LogRecord, RecordMetadata, decode_records, full_event
from console.runs.run_state import RunState
from dart_streams.bus.lag import Lag, lag_reader
from dart_streams.config import Config
from dart_streams.deadline import Deadline
from dart_streams.store import connect
from topics.action_requests import ActionRequest
from topics.actions import ActionResponse
from topics.curated import CuratedGroup
from topics.observations import ExecutedAction, Observation
from topics.rollout_orders import RolloutOrder
from topics.trained import TrainedStep
from topics.trajectories import Trajectory
from topics.transitions import is_fenced
from topics.weights import WeightVersion

READ = tuple(
    topics.BY_NAME[name]
    for name in (
        "trained",
        "weights",
        "curated",
        "trajectories",
        "observations",
        "actions",
        "action-requests",
        "rollout-orders",
    )
)
"""Effects before their causes: what is written while this reads cannot look like an effect without a cause."""
EXAMPLES = 5
LAGS_S = 120.0
RECORDED = ("recorder", "observations")
RECORDERS = frozenset({"steps", "trajectories", "trajectories_by_task"})
"""Tables that the recorder writes: what it has not committed may not be there yet."""

Found = dict[str, list[str]]
Event = TypeVar("Event", bound=msgspec.Struct)
_encode = msgspec.json.Encoder(order="deterministic").encode


class Log:
    """The events of a run by kind, in the order of their partitions, and where the orders and observations lie."""

    def __init__(self, records: Iterable[LogRecord]) -> None:
        self.records = list(records)
        self.of_kind: defaultdict[type, list[Any]] = defaultdict(list)
        for record in self.records:
            self.of_kind[type(record.event)].append(record.event)

    def all(self, kind: type[Event]) -> list[Event]:
        return self.of_kind[kind]

    def distinct(self, kind: type[Event]) -> list[Event]:
        """Return them without repeats: delivery is at least once, so an event may be published again as it was."""
        return list({_encode(event): event for event in self.all(kind)}.values())


def broken(log: Log, lags: Sequence[Lag] | None) -> Found:
    """Return examples of each rule that does not hold, by rule."""
    rules = {
        "lost": lost(log, lags),
        "an id stands for two things": ambiguous(log),
        "a finished trajectory lacks a step": gaps(log),
        **answers(log),
        **groups(log),
        **steps(log),
        "versions go back": versions(log),
    }
    return {rule: examples[:EXAMPLES] for rule, examples in rules.items() if examples}


def lost(log: Log, lags: Sequence[Lag] | None) -> list[str]:
    """Return the orders that were committed as done and finished nowhere; that they cannot be counted is found too.

    An order whose end the recorder has not committed is not lost: the next recorder announces it.
    """
    state = RunState().fold(record for record in log.records if isinstance(record.event, RolloutOrder | Trajectory))
    if not state.orders:
        return ["not known: the log has no order"]
    known = {lag.partition for lag in lags or () if lag.topic == "rollout-orders" and lag.group == "env"}
    unknown = {place.partition for _, place in state.orders.values()} - known
    if lags is None or unknown:
        return [f"not known: no committed offset of the env workers in partitions {sorted(unknown)} of rollout-orders"]
    waiting = pending(log, lags)
    unrecorded = {
        event.order.order_id for event in log.all(Observation) if event.end and event.trajectory_id in waiting
    }
    return [name for name in open_orders.unannounced_orders(state, lags) if name not in unrecorded]


def ambiguous(log: Log) -> list[str]:
    """Return ids that different events share: of an order, a group, a step of an epoch, a version of an epoch."""
    named = Counter(
        [
            *(f"order {event.order_id}" for event in log.distinct(RolloutOrder)),
            *(f"group {event.group_id}" for event in log.distinct(CuratedGroup)),
            *(f"step {event.train_step} of epoch {event.epoch}" for event in log.distinct(TrainedStep)),
        ]
    )
    files: defaultdict[str, set[tuple[str, str, str]]] = defaultdict(set)
    for event in log.all(WeightVersion):
        files[f"version {event.version} of epoch {event.epoch}"].add((event.model_id, event.uri, event.sha256))
    several = [name for name, known in files.items() if len(known) > 1]
    return [name for name, times in named.items() if times > 1] + several


def gaps(log: Log) -> list[str]:
    """Return the finished trajectories of which the log has not each observation, from the reset on."""
    seen: defaultdict[str, set[int]] = defaultdict(set)
    for event in log.all(Observation):
        seen[event.trajectory_id].add(event.step)
    return [
        event.trajectory_id
        for event in log.distinct(Trajectory)
        if event.outcome != "lost" and not is_whole(seen[event.trajectory_id], event.steps)
    ]


def is_whole(seen: set[int], steps: int) -> bool:
    """Whether the observations of an episode of ``steps`` steps are all there, from the one after the reset on."""
    return seen == set(range(len(seen))) and len(seen) > steps


def answers(log: Log) -> Found:
    """Return what is wrong with requests, their answers, and the actions taken of them.

    Another attempt, or the end of the episode, follows a request that timed out. People answer without a request.
    """
    requests = {event.request_id: event for event in log.all(ActionRequest)}
    given: defaultdict[str, list[ActionResponse]] = defaultdict(list)
    for event in log.all(ActionResponse):
        given[event.request_id].append(event)
    of_policy = {one.request_id for one in log.all(ActionResponse) if one.versions or one.error is not None}
    taken = [
        (action, event.trajectory_id, event.step)
        for event in log.distinct(Observation)
        if (action := event.taken) and event.order.purpose != "demonstration"
    ]
    return {
        "an action was taken that no worker gave": sorted({one.request_id for one, *_ in taken} - given.keys()),
        "an action is not as it was answered": sorted(
            one.request_id
            for one, *_ in taken
            if one.versions
            and one.request_id in given
            and not any(is_of(one, answer) for answer in given[one.request_id])
        ),
        "an answer belongs to no request": sorted(of_policy - requests.keys()),
        "an answer was taken twice": repeated(one.request_id for one, *_ in taken),
        "a request has neither an action nor a time-out": forgotten(
            log, {(trajectory, step) for _, trajectory, step in taken}
        ),
    }


def is_of(action: ExecutedAction, answer: ActionResponse) -> bool:
    """Return whether an action has all that an answer has of it."""
    fields = ("text", "tokens", "logprobs", "entropies", "versions", "prompt_sha")
    return answer.error is None and all(getattr(action, field) == getattr(answer, field) for field in fields)


def forgotten(log: Log, acted: Set[tuple[str, int]]) -> list[str]:
    """Return the requests for a step that an episode left behind without an action, ``acted`` being those with one.

    A request of the last step may end with its episode: after its attempts, by a limit, or cancelled.
    """
    last: defaultdict[str, int] = defaultdict(int)
    for event in log.all(Observation):
        last[event.trajectory_id] = max(last[event.trajectory_id], event.step)
    return sorted(
        event.request_id
        for event in log.distinct(ActionRequest)
        if (event.trajectory_id, event.step + 1) not in acted and last[event.trajectory_id] > event.step + 1
    )


def repeated(names: Iterable[str]) -> list[str]:
    """Return the names that occur more than once."""
    return sorted(name for name, times in Counter(names).items() if times > 1)


def groups(log: Log) -> Found:
    """Return groups that count what is not the first finish of an order, and trajectories that count twice."""
    order_of = {event.trajectory_id: event.order_id for event in log.all(Trajectory)}
    first: dict[str, str] = {}
    for event in log.all(Trajectory):
        first.setdefault(event.order_id, event.trajectory_id)
    online = {
        (group.group_id, member.trajectory_id)
        for group in log.all(CuratedGroup)
        for member in group.members
        if member.source == "online"
    }
    twice = {
        f"{name} in {group.group_id}"
        for group in log.all(CuratedGroup)
        for name, number in Counter(member.trajectory_id for member in group.members).items()
        if number > 1
    }
    return {
        "a group counts what is not its order's first finish": sorted(
            f"{identity} in {group}" for group, identity in online if first.get(order_of.get(identity, "")) != identity
        ),
        "a trajectory is in two groups": repeated(identity for _, identity in online),
        "a trajectory is twice in a group": sorted(twice),
    }


def steps(log: Log) -> Found:
    """Return what is wrong with the steps of the surviving lineage."""
    lineage = surviving(log.distinct(TrainedStep))
    used = {name for step in lineage for name in step.group_ids}
    numbers = [step.train_step for step in lineage]
    known = {group.group_id for group in log.all(CuratedGroup)}
    return {
        "a group is trained on twice": repeated(name for step in lineage for name in step.group_ids),
        "a group is trained on that is not curated": sorted(used - known),
        "a trained step is missing": [f"{b} after {a}" for a, b in itertools.pairwise(numbers) if b != a + 1],
    }


def surviving(steps: Iterable[TrainedStep]) -> list[TrainedStep]:
    """Return the steps that are in the newest weights, in order.

    A trainer that takes over goes on from a checkpoint: what the one before had trained after that is not in its
    weights, and no reader takes what that one still publishes.
    """
    kept: dict[int, TrainedStep] = {}
    epoch = -1
    for step in steps:
        if is_fenced(step.epoch, epoch):
            continue
        if step.epoch > epoch:
            kept = {number: earlier for number, earlier in kept.items() if number < step.train_step}
        epoch = step.epoch
        kept.setdefault(step.train_step, step)
    return [kept[number] for number in sorted(kept)]


def versions(log: Log) -> list[str]:
    """Return where versions of one epoch do not increase; one may be announced again, with more groups or whole."""
    newest: dict[tuple[str, int], tuple[int, int, bool]] = {}
    back = []
    for event in log.distinct(WeightVersion):
        key, this = (event.model_id, event.epoch), (event.version, event.groups_consumed, event.kind == "full")
        if this <= (before := newest.get(key, (-1, -1, False))):
            back.append(f"epoch {event.epoch}: {this[0]} after {before[0]}")
        newest[key] = max(this, before)
    return back


def pending(log: Log, lags: Sequence[Lag] | None) -> set[str]:
    """Return the trajectories with observations that the recorder has not committed: it may not have written them."""
    committed = {lag.partition: lag.committed for lag in lags or () if (lag.group, lag.topic) == RECORDED}
    return {
        record.event.trajectory_id
        for record in log.records
        if isinstance(record.event, Observation)
        and record.metadata.offset >= committed.get(record.metadata.partition, 0)
    }


def differing(stored: Iterable[ProjectedRow], logged: Iterable[ProjectedRow], unwritten: set[str]) -> list[str]:
    """Return the keys of rows that store and log do not agree on, except what the recorder has still to write."""
    there, wanted = (
        {(row.table, row.key): projection.hash_of(row.values) for row in rows} for rows in (stored, logged)
    )
    return [
        f"{table} {key[1:]}: {what}"
        for (table, key), what in {
            **{place: "in the log only" for place in wanted.keys() - there.keys()},
            **{place: "in the store only" for place in there.keys() - wanted.keys()},
            **{place: "not as in the log" for place in there.keys() & wanted.keys() if there[place] != wanted[place]},
        }.items()
        if not (table in RECORDERS and what == "in the log only" and unwritten.intersection(map(str, key)))
    ]


def replayed(config: Config, folder: Path) -> list[str]:
    """Return where the data manager decides otherwise than it did, given the same inputs again."""
    path = folder / "run.dart"
    capture(config, path, topics.ALL)
    try:
        outcome = replay(Bundle(path))
    except BundleError as error:
        return [str(error)]
    return [] if outcome.equal else [repr(outcome.divergence)]


def read(config: Config) -> Log:
    """Read a run's log."""
    return Log(
        decode_records(
            config.bus,
            READ,
            lambda topic, record: LogRecord(
                RecordMetadata(topic, record.partition, record.offset, record.at_ms), full_event(topic, record)
            ),
        )
    )


async def read_lags(config: Config) -> list[Lag] | None:
    """Return the offsets of each consumer group, None if the broker does not say."""
    deadline = Deadline(LAGS_S)
    async with lag_reader(config.bus) as reader:
        while (lags := await reader.read()) is None:
            if deadline.expired:
                break
            await asyncio.sleep(0.5)
    return lags


def of_log(config: Config, log: Log, lags: Sequence[Lag] | None) -> Found:
    """Return what is broken of a run's log, and of its decisions made again."""
    rules = broken(log, lags)
    with tempfile.TemporaryDirectory() as folder:
        if decisions := replayed(config, Path(folder)):
            rules["decided otherwise in the replay"] = decisions
    return rules


def of_run(config: Config) -> Found:
    """Return what is broken of a run that has ended: as :func:`of_log`, and of its store."""
    lags = asyncio.run(read_lags(config))
    log = read(config)
    rules = of_log(config, log, lags)
    session = connect(config.store)
    try:
        logged = projection.project_rows(config.bus.run, (record.event for record in log.records))
        differences = differing(projection.stored_rows(session, config.bus.run), logged, pending(log, lags))
    finally:
        session.cluster.shutdown()
    if differences:
        rules["the store is not what the log makes of it"] = differences[:EXAMPLES]
    return rules


def of_live_run(config: Config) -> Found:
    """Return what is broken of a run whose workers still run: as :func:`of_log`.

    A trajectory that has ended is announced within :data:`ANNOUNCED_S` of its order's commit, or the order is lost.
    """
    lags = asyncio.run(read_lags(config))
    time.sleep(ANNOUNCED_S)
    return of_log(config, read(config), lags)


if __name__ == "__main__":
    path, *live = sys.argv[1:]
    result = (of_live_run if live == ["--live"] else of_run)(RunFolder(Path(path).resolve()).config())
    sys.stdout.write(json.dumps(result) + "\n")
    sys.exit(bool(result))
