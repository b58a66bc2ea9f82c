"""What the benchmark of weight switches makes of its records, worked out by hand."""

import pytest

from benchmarks.weight_switch_metrics import Answer, Records, SwitchRecord, Window, capacity_min, switch_metrics


def answers(times: range, tokens: int = 10, versions: int = 1) -> list[Answer]:
    return [Answer(at_ms, "rollout-0", tokens, versions, 30.0) for at_ms in times]


def records(**changes: object) -> Records:
    usual = Records(
        workers=2,
        switches=[SwitchRecord("rollout-0", 1, 1_500, 40.0), SwitchRecord("rollout-1", 1, 1_600, 60.0)],
        restarts_ms=[20_000.0, 10_000.0, 12_000.0],
        answers=[*answers(range(0, 1000, 100)), *answers(range(1000, 2000, 125), versions=2)],
        windows=[Window(0, 1000, switching=False), Window(1000, 2000, switching=True)],
        failed=0,
    )
    return usual._replace(**changes)


def test_the_figures_have_the_names_that_others_read():
    found = switch_metrics(records())
    assert found["pause_ms"] == {"p50": 50.0, "max": 60.0}
    assert found["restart_ms"] == {"p50": 12_000}
    assert found["ratio"] == 240
    assert (found["failed"], found["workers"], found["capacity_min"]) == (0, 2, 0.5)
    assert found["throughput_lost_pct"] == pytest.approx(20.0)
    assert found["of_two_versions"] == 8
    found = switch_metrics(records(failed=3))
    assert (found["failed"], found["requests"]) == (3, 18 + 3)


@pytest.mark.parametrize(
    ("second", "capacity"),
    [
        (SwitchRecord("rollout-1", 1, 1_060, 60.0), 0.667),
        (SwitchRecord("rollout-1", 1, 1_050, 60.0), 0.333),
        (SwitchRecord("rollout-1", 1, 1_000, 10.0), 0.333),
    ],
)
def test_capacity_is_lost_only_where_pauses_overlap(second, capacity):
    assert capacity_min([SwitchRecord("rollout-0", 1, 1_000, 40.0), second], 3) == capacity


def test_answers_count_in_the_window_in_which_they_came():
    edge = records(answers=[*answers(range(500, 501)), *answers(range(1000, 1001)), *answers(range(2000, 2001), 99)])
    assert switch_metrics(edge)["tokens_per_s"] == {"steady": 10.0, "switching": 10.0}
