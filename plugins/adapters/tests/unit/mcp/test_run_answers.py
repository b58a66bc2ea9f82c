"""Answers on a run: each of a recorded run's orders, groups and tasks, and a change of metrics by hand."""

import msgspec
import pytest

from console.bundles.bundle_inputs import config_of
from console.runs.bundle import Bundle
from dart_adapters.mcp.command import answers_on, select_rows
from dart_adapters.mcp.run_answers import RunAnswers, compare_sides
from dart_streams.errors import UserError
from tests.integration.recorded_run import record


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Bundle:
    return Bundle(record(tmp_path_factory.mktemp("answers") / "run.dart"))


@pytest.fixture(scope="module")
def answers(bundle: Bundle) -> RunAnswers:
    return answers_on(config_of(bundle), bundle)


def test_a_run_is_described_by_counts_and_traced_without_token_numbers(answers: RunAnswers):
    said = answers.describe()
    assert sum(one["count"] for one in said["episodes"]) == len(answers.state.finished)
    assert said["train_steps"] == len(answers.state.trained) > 0
    assert said["groups"]["curated"] == len(answers.state.groups)
    assert said["groups"]["dropped: all rewards equal"] > 0
    newest = answers.state.newest_version
    text = str(answers.trace(f"v{newest}"))
    assert "train step" in text and "logprobs" not in text


def test_every_order_has_its_reason_its_end_and_its_group(answers: RunAnswers):
    trained = 0
    for order_id, (order, _) in answers.state.orders.items():
        said = answers.explain_order(order_id)
        assert said["ordered_by"] and said["order"]["task_id"] == order.task_id
        if order.purpose == "train":
            assert said["why"], order_id
            assert said["group"]["fate"]
            trained += bool(said["group"]["train_steps"])
    assert trained


def test_a_repeated_order_names_the_attempts_before_it(answers: RunAnswers):
    orders = answers.state.orders.items()
    order_id, (order, place) = next(one for one in orders if one[1][0].purpose == "train")
    stem = order_id.rpartition("/")[0]
    answers.state.orders[f"{stem}/1"] = (msgspec.structs.replace(order, attempt=1, order_id=f"{stem}/1"), place)
    try:
        said = answers.explain_order(f"{stem}/1")
    finally:
        del answers.state.orders[f"{stem}/1"]
    assert said["repeats"] == [{"order_id": order_id, "outcome": answers.state.finished[order_id].outcome}]


def test_each_task_has_the_fate_of_its_groups(answers: RunAnswers):
    tasks = {group.task_id for group, _ in answers.state.groups.values()}
    for task_id in tasks:
        said = answers.explain_task(task_id)
        assert said["why"] and said["curated"] == sum(one["fate"].startswith("curated") for one in said["history"])


@pytest.mark.parametrize("question", ["explain_order", "explain_group", "explain_task", "trace"])
def test_an_unknown_id_is_refused(answers: RunAnswers, question: str):
    with pytest.raises(UserError, match="nowhere"):
        getattr(answers, question)("nowhere")


def test_a_version_without_steps_on_both_sides_is_refused(answers: RunAnswers):
    with pytest.raises(UserError, match="needs two optimizer steps before"):
        answers.compare_around(0)


def test_changes_are_in_standard_deviations_largest_first():
    """a: 1, 3 to 5, 7: means 2 and 6, deviation 1 on both sides, so 4. b: 0 to 1 without any deviation."""
    metrics = {"a": [[1.0, 3.0], [5.0, 7.0]], "same": [[1.0, 2.0], [2.0, 1.0]], "gone": [[1.0, 1.0], [None, None]]}
    changes, one_sided = compare_sides({**metrics, "b": [[0.0, 0.0], [1.0, 1.0]]})
    assert changes == [
        {"metric": "b", "before": 0.0, "after": 1.0, "change": None},
        {"metric": "a", "before": 2.0, "after": 6.0, "change": 4.0},
    ]
    assert one_sided == ["gone"]


def test_rows_are_chosen_by_equal_columns(bundle: Bundle):
    config = config_of(bundle)
    found = select_rows(config, bundle, "episodes", {"outcome": "success"}, ["task_id", "outcome"], 3)
    assert found["rows"] and all(row["outcome"] == "success" for row in found["rows"]) and len(found["rows"]) <= 3
    assert set(found["rows"][0]) == {"task_id", "outcome"}
    assert "tokens" not in select_rows(config, bundle, "actions", {}, [], 1)["rows"][0]
    assert len(select_rows(config, bundle, "orders", {}, [], 10_000)["rows"]) <= 200
    with pytest.raises(UserError, match="episodes has no column 'tusk': it has trajectory_id"):
        select_rows(config, bundle, "episodes", {"tusk": 1}, [], 3)
