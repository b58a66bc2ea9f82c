"""Two evaluations side by side: the report's own intervals, each task once, and nothing made up."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.runs.bundle import Bundle
from console.runs.evaluation import evaluated_versions
from console.views.page.bundle_source import BundleSource
from console.views.page.comparison import compare, pair_tasks
from console.views.page.live_source import LiveSource
from dart_streams.config import parse
from tests.integration.recorded_run import record, settings
from tests.unit.console.views.test_page_server import signed_in, view


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> tuple[BundleSource, BundleSource]:
    folder = tmp_path_factory.mktemp("compare")
    lengths = {"long.dart": 60, "longer.dart": 90}
    paths = [record(folder / name, rollouts, settings(step_ms=1)) for name, rollouts in lengths.items()]
    return BundleSource(Bundle(paths[0])).read(), BundleSource(Bundle(paths[1])).read()


async def test_before_and_after_have_the_reports_own_rates_and_intervals(runs):
    async with signed_in(runs[0]) as client:
        found, report = await view(client, "compare"), (await view(client, "report"))["report"]
        assert found["a"]["version"] < found["b"]["version"]
        assert found["change"] == report["evaluation"]["change"]
        assert {page["page"]: (page["a"], page["b"]) for page in found["pages"]} == {
            name: (row["before"], row["after"]) for name, row in report["per_task"].items()
        }
        for page in found["pages"]:
            assert page["change"]["low"] <= page["change"]["mean"] <= page["change"]["high"]
        assert found["a"]["overall"]["episodes"] == sum(page["a"]["episodes"] for page in found["pages"]) == 24


def test_each_task_is_there_once_and_the_other_way_round_opposite(runs):
    run = runs[0]
    versions = evaluated_versions(run.state)
    low, high = versions[0], versions[-1]
    there, back = compare(run, run, (low, high), None), compare(run, run, (high, low), None)
    assert there.change is not None and back.change is not None
    assert there.change["mean"] == pytest.approx(-back.change["mean"])
    assert there.change["low"] == pytest.approx(-back.change["high"], abs=1e-3)
    assert [page.a for page in there.pages] == [page.b for page in back.pages]
    found = compare(run, run, (None, None), None).tasks
    assert len({pair.task_id for pair in found}) == len(found) == len(run.task_set().heldout)


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.sampled_from([None, 0.0, 0.5, 1.0])),
    st.dictionaries(st.sampled_from("abcdef"), st.sampled_from([None, 0.0, 0.5, 1.0])),
)
def test_tasks_are_by_the_size_of_their_change_and_then_by_name(runs, first, second):
    any_episode = next(iter(runs[0].state.finished.values()))

    def episodes(rewards):
        return {name: msgspec.structs.replace(any_episode, task_id=name, reward=rewards[name]) for name in rewards}

    found = pair_tasks(episodes(first), episodes(second))
    assert sorted(pair.task_id for pair in found) == sorted({*first, *second})
    ranks = [(-abs((first.get(x.task_id) or 0) - (second.get(x.task_id) or 0)), x.task_id) for x in found]
    assert ranks == sorted(ranks)


async def test_two_runs_are_compared_by_their_newest_versions(runs):
    async with signed_in(*runs) as client:
        found = await view(client, "compare", of="other")
        assert found["a"]["version"] == found["a"]["versions"][-1]
        assert found["b"]["version"] == found["b"]["versions"][-1]
        played = found["tasks"][0]["b"]["trajectory_id"]
        assert (await client.get("/api/trajectory", params={"id": played})).status == 404, "it is the other run's"
        steps = (await view(client, "trajectory", id=played, of="other"))["steps"]
        sha = steps[0]["event"]["screenshot"]["sha256"]
        assert (await client.get(f"/screenshot/{sha}")).status == 200
        mine = found["tasks"][0]["a"]["trajectory_id"]
        assert (await view(client, "trajectory", id=mine))["trajectory_id"] == mine


async def test_without_another_run_one_that_is_asked_for_is_a_sentence(runs):
    async with signed_in(runs[0]) as client:
        for name in ("compare", "trajectory", "compared-task"):
            answer = await client.get(f"/api/{name}", params={"of": "other", "id": "x"})
            assert answer.status == 404
            assert "--against" in (await answer.json())["error"]
        assert (await client.get("/api/compare", params={"t": "9"})).status == 404
        assert (await client.get("/api/compare", params={"a": "x"})).status == 404


async def test_a_training_task_is_compared_by_its_first_and_newest_episode(runs):
    async with signed_in(runs[0]) as client:
        task = next(one for one in await view(client, "tasks") if one["rewarded"] > 2)["task_id"]
        pair = await view(client, "compared-task", id=task)
        rows = [row for row in (await view(client, "trajectories", task_id=task))["rows"] if row["purpose"] == "train"]
        times = {row["trajectory_id"]: row["finished_ms"] for row in rows if row["reward"] is not None}
        assert times[pair["a"]["trajectory_id"]] == min(times.values())
        assert times[pair["b"]["trajectory_id"]] == max(times.values())


def test_a_version_that_was_not_evaluated_has_no_rate(runs):
    run = runs[0]
    found = compare(run, run, (None, 999), None)
    assert (found.b.version, found.b.overall, found.change) == (None, {}, None)
    assert all(page.b == {} and page.change is None for page in found.pages)
    nothing = LiveSource(parse({}, "the test"), None)
    empty = compare(nothing, nothing, (None, None), None)
    assert (empty.a.version, empty.pages, empty.tasks) == (None, [], [])
