"""The account of a run from its topics: what slots, rollout workers and trainer did, by hand-made logs."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.logged import Clock, began_ms, build_account
from benchmarks.utilization import OptimizerStep, ServedRequest, utilization_metrics
from console.runs.bundle import BundleRecord
from console.runs.run_log import LogRecord, log_record
from console.runs.run_state import RunState
from dart_streams.bus.codec import encode
from dart_streams.episodes.episode import new_trajectory_id
from tests import events
from topics import Topic, actions, curated, observations, trained
from topics.observations import EpisodeEnd, ExecutedAction
from topics.values import BlobRef

T0 = 1_000_000
CLOCK = Clock(T0, T0 + 2_000, 10.0)
"""A run of two seconds on the clock: twenty of the desktops'."""


def logged(topic: Topic, event, at_ms: int) -> LogRecord:
    """Return an event as it is read back from the log."""
    record = encode(topic, event)
    return log_record(topic.name, BundleRecord(0, 0, at_ms, record.key, record.value, list(record.headers)))


def state(*records: LogRecord) -> RunState:
    return RunState(keep_steps=True).fold(records)


def taken(execute_ms=50.0, queue_ms=0.0, generate_ms=0.0) -> ExecutedAction:
    return events.executed_action(queue_ms=queue_ms, generate_ms=generate_ms, execute_ms=execute_ms)


def observation(trajectory, step, at_ms, *, written_ms=None, end=None, purpose="train", **times) -> LogRecord:
    event = events.observation(
        step,
        trajectory_id=trajectory,
        order=events.rollout_order(purpose=purpose),
        screenshot=BlobRef(sha256="", size=1, width=1, height=1),
        taken=taken(**times) if step else None,
        end=end,
        at_ms=T0 + at_ms,
    )
    return logged(observations.TOPIC, event, T0 + (at_ms if written_ms is None else written_ms))


def answer(worker, at_ms, generate_ms) -> LogRecord:
    event = events.action_response(request_id=f"r{at_ms}", worker_id=worker, generate_ms=generate_ms)
    return logged(actions.TOPIC, event, T0 + at_ms)


def trajectory(at_ms: int, salt: int = 0) -> str:
    return new_trajectory_id(T0 + at_ms, bytes([salt] * 10))


def group(selected, version_min, source="online") -> LogRecord:
    member = events.member(selected=selected, source=source, version=version_min)
    event = events.curated_group(f"g{version_min}", member)
    return logged(curated.TOPIC, event, 0)


def step(version, at_ms, groups) -> LogRecord:
    event = events.trained_step(version, group_ids=groups, metrics={"train_ms": 100.0}, at_ms=T0 + at_ms)
    return logged(trained.TOPIC, event, T0 + at_ms)


def test_an_episode_becomes_what_its_slot_did():
    one = trajectory(100)
    won = EpisodeEnd(kind="success", reward=1.0)
    log = state(
        observation(one, 1, 600, execute_ms=100.0),
        observation(one, 0, 400),
        observation(one, 2, 900, written_ms=950, end=won, execute_ms=200.0),
    )
    found = build_account(log, CLOCK, slots=2, workers=1, places=4)
    assert found.episodes == [(1.0, 9.5)]
    assert found.actions == [6.0, 9.0]
    assert found.finished == [(9.5, 2)]


def test_open_episodes_last_until_the_end_and_others_are_left_out():
    open_one, late, shown = trajectory(500), trajectory(2_500, 1), trajectory(10, 2)
    log = state(
        observation(open_one, 0, 900), observation(late, 0, 2_600), observation(shown, 0, 20, purpose="demonstration")
    )
    found = build_account(log, CLOCK, slots=2, workers=1, places=4)
    assert found.episodes == [(5.0, 20.0)]
    assert not found.finished


FAULT = EpisodeEnd(kind="env_error", reward=None, reason="hang")


def test_a_hanging_step_has_no_reward():
    one = trajectory(0)
    last = observation(one, 1, 1_000, end=FAULT, queue_ms=50.0, generate_ms=150.0)
    found = build_account(state(observation(one, 0, 100), last), CLOCK, slots=1, workers=1, places=1)
    assert not found.finished
    assert found.requests == [ServedRequest(9.5, 0.5, 2.0)], "who answered before is not in the log of observations"


def test_answers_and_optimizer_steps_have_their_times():
    log = state(
        *(answer("rollout-1", 700, 200), answer("rollout-0", 500, 100), answer("rollout-0", 3_000, 10)),
        *(group([0, 1, 2], 0), group([0], 1), group([0, 1], 9, source="pool")),
        *(step(1, 600, ["g0"]), step(3, 1_600, ["g1", "g9"]), step(4, 2_100, ["g0"])),
    )
    found = build_account(log, CLOCK, slots=1, workers=2, places=1)
    assert found.generated == [(0, 4.0, 5.0), (1, 5.0, 7.0)]
    assert found.trained == [OptimizerStep(6.0, 5.0, 3, 0), OptimizerStep(16.0, 15.0, 1, 1)]
    made = utilization_metrics(found, 0)
    assert made.trained_steps_per_min == pytest.approx(6.0)
    assert made.staleness_max == 1
    assert made.rollout_utilisation == pytest.approx(1 / 20), "only the second of worker 1 after the first version"


@given(st.integers(0, 2**48 - 1), st.binary(min_size=10, max_size=10))
def test_a_trajectory_says_when_it_began(at_ms, salt):
    assert began_ms(new_trajectory_id(at_ms, salt)) == at_ms
    assert uuid.UUID(new_trajectory_id(at_ms, salt)).version == 7
