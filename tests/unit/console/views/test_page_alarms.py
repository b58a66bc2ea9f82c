"""Each alarm on both sides of its bound."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.runs.bundle import Bundle
from console.runs.run_folder import PhaseLog
from console.runs.run_log import RecordMetadata
from console.runs.run_state import RunState
from console.runs.topic_activity import TopicActivity
from console.views.page import alarms
from console.views.page.alarms import BURST, BURST_SHARE, ENTROPY_SHARE, REWARD_SHARE, REWARD_WINDOW, WINDOW
from console.views.page.bundle_source import BundleSource
from console.views.page.header import page_header
from tests import events
from topics.trained import MISMATCH_ALARM_NATS, TrainedStep

GOLDEN = Path(__file__).parents[2] / "golden" / "bundle.v1.dart"


def step(number: int, **metrics: float) -> TrainedStep:
    return events.trained_step(number, metrics=metrics, at_ms=number)


def test_entropy_collapses_below_a_tenth_of_its_first_values():
    first = [1.0] * WINDOW
    alarm = alarms.entropy_collapse([*first, *[ENTROPY_SHARE * 0.99] * WINDOW])
    assert (alarm.kind, alarm.page, alarm.params) == ("entropy", "steps", {"q": "entropy"})
    assert "0.099 nats" in alarm.text
    assert alarms.entropy_collapse([*first, *[ENTROPY_SHARE * 1.01] * WINDOW]) is None
    assert alarms.entropy_collapse([*first, *[ENTROPY_SHARE * 0.99] * (WINDOW - 1)]) is None, "too few steps to say"
    assert alarms.entropy_collapse([]) is None


def test_reward_collapses_below_half_of_a_sufficient_best():
    fell = [*[0.6] * REWARD_WINDOW, *[0.6 * REWARD_SHARE - 0.01] * REWARD_WINDOW]
    alarm = alarms.reward_collapse(fell)
    assert alarm is not None and alarm.kind == "reward"
    assert "0.29" in alarm.text and "0.60" in alarm.text
    assert alarms.reward_collapse([*[0.6] * REWARD_WINDOW, *[0.6 * REWARD_SHARE + 0.01] * REWARD_WINDOW]) is None
    assert alarms.reward_collapse([*fell, *[0.6] * REWARD_WINDOW]) is None
    assert alarms.reward_collapse([*[alarms.REWARD_WORTH - 0.01] * REWARD_WINDOW, *[0.0] * REWARD_WINDOW]) is None
    assert alarms.reward_collapse([*[alarms.REWARD_WORTH + 0.01] * REWARD_WINDOW, *[0.0] * REWARD_WINDOW]) is not None


@given(st.lists(st.floats(0.3, 1.0), max_size=100))
def test_a_reward_that_never_fell_below_half_of_any_earlier_one_is_none(rewards: list[float]):
    rising = sorted(rewards)
    assert alarms.reward_collapse(rising) is None
    assert alarms.entropy_collapse(rising) is None


@pytest.mark.parametrize("kind", ["env_error", "policy_error"])
def test_faults_are_a_burst_above_a_third_of_the_newest_episodes(kind):
    most = int(BURST * BURST_SHARE)
    burst = [kind] * (most + 1) + ["success"] * (BURST - most - 1)
    alarm = alarms.fault_burst(burst)
    assert alarm.params == {"outcome": kind}, "it leads to those that failed"
    assert alarms.fault_burst([kind] * most + ["failure"] * (BURST - most)) is None
    assert alarms.fault_burst([kind] * (BURST - 1)) is None, "too few episodes to say"
    assert alarms.fault_burst(["failure"] * BURST) is None, "an agent that fails is no fault"


def test_the_newest_steps_gap_to_the_engine_and_its_skips_are_alarms():
    alarm = alarms.engine_gap(step(7, same_version_mismatch=MISMATCH_ALARM_NATS * 1.01))
    assert alarm is not None and alarm.params == {"id": "7"}
    assert alarms.engine_gap(step(7, same_version_mismatch=MISMATCH_ALARM_NATS)) is None
    assert alarms.engine_gap(step(7, reward=1.0)) is None, "no token was sampled by the version that was trained"
    assert alarms.engine_gap(None) is None
    alarm = alarms.not_finite(step(7, updates_not_finite=1.0, not_finite_groups=8.0))
    assert alarm is not None and alarm.params == {"id": "7"}
    assert "1 updates and 8 groups" in alarm.text
    assert alarms.not_finite(step(7, updates_not_finite=0.0, not_finite_groups=0.0)) is None
    assert alarms.not_finite(None) is None


def test_a_run_has_all_alarms_and_stalls_only_while_it_is_live():
    state = RunState()
    for number in range(1, 2 * REWARD_WINDOW + 1):
        late = number > REWARD_WINDOW
        wrong = {"same_version_mismatch": 0.2, "updates_not_finite": 1.0}
        event = step(number, reward=0.1 if late else 0.8, entropy=0.001 if late else 1.0, **wrong)
        state.apply(RecordMetadata("trained", 0, number, number), event)
    weights = events.weight_version(1)
    state.apply(RecordMetadata("weights", 0, 0, 1_000), weights)
    state.lost = 2
    found = [alarm.kind for alarm in alarms.find_alarms(state, 100_000, live=False)]
    assert found == ["lost", "entropy", "reward", "gap", "not-finite"]
    assert "stall" in [alarm.kind for alarm in alarms.find_alarms(state, 100_000, live=True)]
    assert "stall" not in [alarm.kind for alarm in alarms.find_alarms(state, 2_000, live=True)]
    assert alarms.find_alarms(RunState(), 0, live=True) == []
    state.activity = {
        name: TopicActivity(1, at, "one", f"{name}[0]@0") for name, at in (("actions", 1), ("observations", 9))
    }
    (first, *others) = [alarm.text for alarm in alarms.find_alarms(state, 100_000, live=True) if alarm.kind == "stall"]
    assert first.startswith("actions silent") and "newer input on observations for rollout workers" in first
    assert not [text for text in others if text.startswith("action-requests")], "the page does not read them"


def test_dead_processes_and_lost_orders_are_alarms_with_their_numbers():
    journal = PhaseLog().with_death("env-0", "exit code 1", "", 1).with_death("env-0", "killed by SIGKILL", "", 2)
    found = alarms.process_deaths(journal.with_death("ui", "exit code 2", "", 3).deaths)
    assert [alarm.text for alarm in found] == [
        "env-0 has died 2 times, the last time: killed by SIGKILL",
        "ui has died once, the last time: exit code 2",
    ]
    assert alarms.process_deaths(()) == []
    assert alarms.lost_orders(0) is None
    alarm = alarms.lost_orders(3)
    assert alarm.text.startswith("3 orders were lost")
    assert alarm.params == {"outcome": "lost"}


def test_the_page_shows_that_a_process_died_beside_all_other_alarms():
    source = BundleSource(Bundle(GOLDEN)).read()
    before = page_header(source).alarms
    source._journal = source.journal().with_death("env-0", "exit code 1", "", 1)
    assert page_header(source).alarms == [*alarms.process_deaths(source.journal().deaths), *before]
