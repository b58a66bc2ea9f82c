"""Each invariant holds of a small whole log, and fails on one that is doctored against it; repeats break none."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from console.repair import projection
from console.runs.run_log import LogRecord, RecordMetadata
from dart_streams.bus.codec import decode
from dart_streams.bus.lag import Lag
from dart_streams.episodes.episode import executed_action
from tests.faults.invariants import Log, broken, differing, pending
from topics import BY_NAME
from topics.action_requests import ActionRequest
from topics.actions import ActionResponse
from topics.curated import CuratedGroup
from topics.observations import Observation
from topics.rollout_orders import RolloutOrder
from topics.trained import TrainedStep
from topics.trajectories import Trajectory
from topics.weights import WeightVersion

GOLDEN = Path(__file__).parents[1] / "unit" / "golden"
ORDERS = ("a", "b", "c")
READ = [Lag("env", "rollout-orders", 0, 3, 3), Lag("recorder", "observations", 0, 9, 9)]
TOPIC_OF = {topic.event: name for name, topic in BY_NAME.items()}
replace = msgspec.structs.replace

Events = list[Any]


def golden(topic: str) -> Any:
    return decode(BY_NAME[topic], json.loads((GOLDEN / f"{topic}.v1.json").read_text())["value"].encode(), [])


def episode(order: RolloutOrder, identity: str, steps: int = 2) -> Events:
    """Return the log of an episode of ``steps`` actions."""
    seen = replace(golden("observations"), trajectory_id=identity, order=order, taken=None, end=None)
    action, end = golden("actions"), golden("observations").end
    asked = replace(golden("action-requests"), trajectory_id=identity)
    events: Events = [replace(seen, step=0)]
    for step in range(1, steps + 1):
        request = f"{identity}/{step - 1}/0"
        events.append(replace(asked, request_id=request, step=step - 1))
        events.append(replace(action, request_id=request, trajectory_id=identity, step=step - 1))
        last = end if step == steps else None
        events.append(replace(seen, step=step, taken=executed_action(events[-1], "click(1,2)"), end=last))
    order_of = {"order_id": order.order_id, "group_id": order.group_id}
    return [*events, replace(golden("trajectories"), trajectory_id=identity, steps=steps, **order_of)]


def whole() -> Events:
    """Return a run of three groups of one, each an optimizer step."""
    order, group, step = golden("rollout-orders"), golden("curated"), golden("trained")
    member = replace(group.members[0], source="online")
    events: Events = [replace(golden("weights"), version=0, groups_consumed=0)]
    for number, name in enumerate(ORDERS, 1):
        placed = replace(order, order_id=name, group_id=f"g{name}", group_size=1, sample=0)
        events += [placed, *episode(placed, f"t{name}")]
        events.append(replace(group, group_id=f"g{name}", members=[replace(member, trajectory_id=f"t{name}")]))
        events.append(replace(step, train_step=number, version=number, group_ids=[f"g{name}"]))
        events.append(replace(golden("weights"), version=number, groups_consumed=number))
    return events


def log(events: Events) -> Log:
    """Return a log of events, each topic with one partition."""
    ends: dict[str, int] = {}
    records = []
    for event in events:
        topic = TOPIC_OF[type(event)]
        ends[topic] = ends.get(topic, -1) + 1
        records.append(LogRecord(RecordMetadata(topic, 0, ends[topic], 1), event))
    return Log(records)


def first(events: Events, kind: type, number: int = 0) -> Any:
    return [event for event in events if isinstance(event, kind)][number]


def without(events: Events, *gone: Any) -> Events:
    return [event for event in events if not any(event is other for other in gone)]


def test_a_whole_log_keeps_every_rule_also_with_every_record_twice():
    events = whole()
    assert broken(log(events), READ) == {}
    assert broken(log([*events, *events]), READ) == {}
    assert broken(log([event for event in events for _ in range(2)]), READ) == {}


def again(events: Events, kind: type, number: int = 0, **changes: Any) -> Events:
    """Return the log with one more record, a changed copy of one."""
    return [*events, replace(first(events, kind, number), **changes)]


def counts_the_second_finish(events: Events) -> Events:
    group = first(events, CuratedGroup)
    later = replace(group, members=[replace(group.members[0], trajectory_id="later")])
    return [*(later if event is group else event for event in events), *episode(first(events, RolloutOrder), "later")]


DOCTORED: dict[str, tuple[str, Callable[[Events], Events]]] = {
    "an order without its finish": ("lost", lambda e: without(e, first(e, Trajectory))),
    "an order id for two tasks": ("an id stands for two things", lambda e: again(e, RolloutOrder, task_id="other")),
    "a group decided twice": ("an id stands for two things", lambda e: again(e, CuratedGroup, mean=0.25)),
    "a version with two files": (
        "an id stands for two things",
        lambda e: again(e, WeightVersion, 3, sha256="0" * 64, groups_consumed=4),
    ),
    "a step without its row": ("a finished trajectory lacks a step", lambda e: without(e, first(e, Observation, 1))),
    "no last step": ("a finished trajectory lacks a step", lambda e: without(e, first(e, Observation, 2))),
    "an action that no worker gave": (
        "an action was taken that no worker gave",
        lambda e: without(e, first(e, ActionResponse)),
    ),
    "an answer to nobody": ("an answer belongs to no request", lambda e: without(e, first(e, ActionRequest))),
    "an action with another token": (
        "an action is not as it was answered",
        lambda e: [replace(one, tokens=[7, *one.tokens[1:]]) if one is first(e, ActionResponse) else one for one in e],
    ),
    "an answer that two steps take": (
        "an answer was taken twice",
        lambda e: again(e, Observation, 5, taken=first(e, Observation, 4).taken),
    ),
    "a step without the action that was asked for": (
        "a request has neither an action nor a time-out",
        lambda e: [replace(one, taken=None) if one is first(e, Observation, 1) else one for one in e],
    ),
    "a group that counts a second finish": (
        "a group counts what is not its order's first finish",
        counts_the_second_finish,
    ),
    "a trajectory in two groups": ("a trajectory is in two groups", lambda e: again(e, CuratedGroup, group_id="more")),
    "a trajectory twice in a group": (
        "a trajectory is twice in a group",
        lambda e: again(e, CuratedGroup, members=2 * first(e, CuratedGroup).members),
    ),
    "a group in two steps": ("a group is trained on twice", lambda e: again(e, TrainedStep, train_step=4)),
    "a group in two steps of two epochs": (
        "a group is trained on twice",
        lambda e: again(e, TrainedStep, train_step=4, epoch=2),
    ),
    "a group that no agent curated": (
        "a group is trained on that is not curated",
        lambda e: without(e, first(e, CuratedGroup)),
    ),
    "a step that is not there": ("a trained step is missing", lambda e: without(e, first(e, TrainedStep, 1))),
    "an older version after a newer": ("versions go back", lambda e: again(e, WeightVersion, 1, groups_consumed=9)),
}


@pytest.mark.parametrize("doctored", DOCTORED)
def test_a_doctored_log_breaks_the_rule_it_is_doctored_against(doctored: str):
    rule, change = DOCTORED[doctored]
    assert rule in broken(log(change(whole())), READ)


@pytest.mark.parametrize(
    "lags",
    [None, [], [READ[1]], [Lag("env", "rollout-orders", 1, 3, 3)], [Lag("recorder", "rollout-orders", 0, 3, 3)]],
    ids=["none", "unknown", "of others", "of another partition", "of another group"],
)
def test_a_count_of_lost_orders_that_cannot_be_made_is_a_fault(lags: list[Lag] | None):
    assert broken(log(whole()), lags)["lost"][0].startswith("not known")


def test_a_request_that_timed_out_is_asked_again_or_ends_its_episode():
    events = whole()
    late = first(events, ActionRequest)
    events = again(events, ActionRequest, 0, request_id=f"{late.request_id[:-1]}1")
    last = first(events, Observation, 2)
    events = again(events, ActionRequest, 1, step=last.step, request_id=f"{last.trajectory_id}/{last.step}/0")
    assert broken(log(events), READ) == {}


def test_a_person_answers_without_a_request_and_acts_in_pixels():
    events = whole()
    asked, answer = first(events, ActionRequest, 1), first(events, ActionResponse, 1)
    seen = first(events, Observation, 2)
    person = replace(answer, text="click(3,4)", tokens=[], logprobs=[], entropies=[], versions=[])
    acted = replace(seen, taken=replace(seen.taken, tokens=[], logprobs=[], entropies=[], versions=[]))
    changed = {id(answer): person, id(seen): acted}
    events = [changed.get(id(event), event) for event in without(events, asked)]
    assert broken(log(events), READ) == {}


def test_a_log_without_orders_is_a_fault():
    assert broken(log([]), READ) == {"lost": ["not known: the log has no order"]}


def test_an_order_that_is_not_committed_is_not_lost():
    events = whole()
    held = [Lag("env", "rollout-orders", 0, 0, 3)]
    assert "lost" not in broken(log(without(events, first(events, Trajectory))), held)


@pytest.mark.parametrize(("recorded", "lost"), [(2, False), (3, True)])
def test_an_order_whose_end_the_recorder_has_still_to_take_is_not_lost(recorded: int, lost: bool):
    events = whole()
    behind = [READ[0], Lag("recorder", "observations", 0, recorded, 9)]
    assert ("lost" in broken(log(without(events, first(events, Trajectory))), behind)) is lost


def test_steps_after_the_checkpoint_may_be_trained_again():
    events = again(whole(), TrainedStep, 1, epoch=2, group_ids=["gb"])
    events = again(events, TrainedStep, 2, train_step=3, epoch=2)
    assert broken(log(events), READ) == {}


def test_what_a_fenced_trainer_publishes_counts_for_nothing():
    events = again(whole(), TrainedStep, 2, epoch=2)
    events.append(replace(first(events, TrainedStep), train_step=4, epoch=1))
    assert broken(log(events), READ) == {}


def rows(events: Events) -> list[projection.ProjectedRow]:
    return list(projection.project_rows("run", events))


def test_rows_match_the_log_but_for_what_is_still_to_be_written():
    events = whole()
    logged = rows(events)
    assert differing(logged, logged, set()) == []
    short = [row for row in logged if not {"ta"} & set(map(str, row.key))]
    assert len(differing(short, logged, set())) == 5
    held = [READ[0], Lag("recorder", "observations", 0, 0, 9)]
    assert differing(short, logged, pending(log(events), held)) == []
    assert differing(short, logged, pending(log(events), READ)) == differing(short, logged, set())


@pytest.mark.parametrize("table", sorted(projection.COLUMNS))
def test_a_row_that_differs_from_the_log_is_found_in_each_table(table: str):
    logged = rows(whole())
    torn = next(row for row in logged if row.table == table)
    others = [row for row in logged if row is not torn]
    everyone = {"ta", "tb", "tc"}
    changed = torn._replace(values=(*torn.values[:-1], "torn"))
    if len(torn.values) > projection.KEYS[table]:
        assert len(differing([*others, changed], logged, everyone)) == 1
    assert len(differing(logged, others, everyone)) == 1


def test_a_republished_step_is_a_repeat_whatever_the_order_of_its_metrics():
    events = whole()
    for metrics in ({"loss": 1.0, "reward": 0.5}, {"reward": 0.5, "loss": 1.0}):
        events = again(events, TrainedStep, 2, train_step=4, group_ids=[], metrics=metrics)
    assert broken(log(events), READ) == {}
