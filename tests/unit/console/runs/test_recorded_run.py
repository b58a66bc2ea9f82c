"""The recorded run of other tests: what they presume of it holds in every run, however fast its machine is."""

from collections import Counter
from operator import attrgetter

import pytest

from console.runs import evaluation
from console.runs.bundle import Bundle
from console.views.page import episodes
from console.views.page.alarms import find_alarms
from console.views.page.bundle_source import BundleSource
from console.views.page.comparison import compare
from console.views.page.training import view_group
from tests.integration.recorded_run import RecordedRun, played, record, settings
from topics import curated, rollout_orders, trained, trajectories

LENGTHS = (60, 90, 120)
"""Rollouts of the runs that tests record."""


@pytest.fixture(scope="module", params=LENGTHS)
def source(request, tmp_path_factory) -> BundleSource:
    path = tmp_path_factory.mktemp("recorded") / "run.dart"
    source = BundleSource(Bundle(record(path, request.param, settings(step_ms=0)))).read()
    return source


def test_the_last_evaluation_keeps_all_successes_of_the_first(source: BundleSource):
    found = compare(source, source, (None, None), None)
    learnt = [(pair.a.outcome, pair.b.outcome) for pair in found.tasks if pair.a and pair.b]
    assert Counter(learnt) == {("failure", "success"): 3, ("success", "success"): 1}
    assert learnt[0] == ("failure", "success"), "those that differ come first"
    assert found.a.faults == found.b.faults == 0
    assert len(found.pages) == 2
    assert found.change is not None and found.change["low"] > 0
    first, last = (
        evaluation.read(source.config, source.task_set(), source.state, version)
        for version in evaluation.evaluated_versions(source.state)
    )
    unlearnt = [one.index for one, other in zip(first.episodes, last.episodes, strict=True) if gain(one, other) < 0]
    assert unlearnt, "of all pairs some got worse"


def gain(one: evaluation.EvaluationEpisode, other: evaluation.EvaluationEpisode) -> float:
    return (other.trajectory.reward or 0.0) - (one.trajectory.reward or 0.0)


def test_optimizer_steps_have_tokens_of_two_members_of_mixed_groups(source: BundleSource):
    state = source.state
    names = {one.group_id for one in state.finished.values() if one.purpose == "train"}
    groups = [view_group(name, state, source.config) for name in names]
    assert {one.equal for one in groups if one.curated_ms is not None} == {False}
    assert any(one.equal for one in groups)
    assert len(state.trained) >= 5
    assert {len(step.top_tokens) for step in state.trained.values()} == {2}
    assert find_alarms(state, 0, live=False) == []


def test_there_are_no_faults_and_successes_fit_on_a_page_of_the_table(source: BundleSource):
    outcomes = Counter(one.outcome for one in source.state.finished.values())
    assert set(outcomes) == {"success", "failure"}
    assert 50 < outcomes["success"] < episodes.PAGE
    training = Counter(one.task_id for one in source.state.finished.values() if one.purpose == "train")
    assert max(training.values()) > 2


def decided(run: RecordedRun) -> dict[str, list]:
    """Return what was decided in a run: all but ids of trajectories and times."""
    logs = {
        topic.name: [one.event for one in run.circle.logs[topic.name]]
        for topic in (rollout_orders.TOPIC, trajectories.TOPIC, curated.TOPIC, trained.TOPIC)
    }
    orders = {one.trajectory_id: one.order_id for one in logs["trajectories"]}
    ended = attrgetter("order_id", "outcome", "steps", "version_min", "version_max", "step_entropies")
    return {
        "rollout-orders": logs["rollout-orders"],
        "trajectories": [ended(one) for one in logs["trajectories"]],
        "curated": [
            (
                one.group_id,
                [(orders[member.trajectory_id], member.advantage, member.selected) for member in one.members],
            )
            for one in logs["curated"]
        ],
        "trained": [(one.train_step, one.version, one.group_ids, one.metrics) for one in logs["trained"]],
    }


def test_decisions_do_not_depend_on_the_speed_of_a_machine():
    fast, slow = (decided(played(settings(step_ms=step_ms), 40)) for step_ms in (0, 20))
    assert fast == slow
    assert all(fast.values())
