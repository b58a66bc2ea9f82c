"""A recorded run in Python: tables of a bundle that was played in memory, with records that come twice."""

import builtins
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import dart_streams
from benchmarks import bundle as bundles
from benchmarks import curation_world
from benchmarks.curation_world import Odds
from dart_data import recorded_run
from dart_data.recorded_run import RecordedRun
from dart_streams.config import parse
from dart_streams.errors import UserError
from dart_streams.store.blobs import ref_of
from tests import events
from tests.sources import ROOT

GOLDEN = ROOT / "tests/unit/golden/bundle.v1.dart"


@pytest.fixture(scope="module")
def played(tmp_path_factory) -> Path:
    config, tasks = parse({"env": {"slots": 8}}), curation_world.task_set(4)
    circle = bundles.play_rollouts(config, tasks, 120, Odds(faults=0.1))
    file = tmp_path_factory.mktemp("run") / "run.dart"
    bundles.write(file, config, tasks, circle)
    return file


def test_episodes_have_their_advantage_and_selected_actions(played: Path):
    run = dart_streams.open(played)
    episodes = list(run.episodes)
    assert len(episodes) == 120 == len({row["trajectory_id"] for row in episodes})
    by_group = {row["group_id"]: row for row in run.groups}
    curated = [row for row in episodes if row["advantage"] is not None]
    assert curated and len(curated) < len(episodes)
    for row in curated:
        group = by_group[row["group_id"]]
        place = group["trajectory_id"].index(row["trajectory_id"])
        assert (row["advantage"], row["reward"]) == (group["advantage"][place], group["reward"][place])
        assert set(row["selected"]) <= set(range(row["steps"]))
    assert any(row["selected"] for row in curated)


def test_rows_have_every_column_however_often_a_table_is_read(played: Path):
    run = dart_streams.open(played)
    for table in (run.episodes, run.groups, run.orders, run.budgets, run.versions):
        columns = {tuple(row) for row in table}
        assert len(columns) == 1, table.name
    assert {row["guided"] for row in run.episodes} == {False}
    orders = dart_streams.open(played).orders
    assert list(orders) == list(orders) != []


def of_events(monkeypatch, **logs: list) -> RecordedRun:
    """Return a run whose topics have these events."""
    monkeypatch.setattr(recorded_run, "read_events", lambda source, topics: iter(logs.get(topics[0].name, [])))
    run = dart_streams.open(GOLDEN)
    return RecordedRun(run.config, run.tasks, run.source)


def test_an_action_has_the_screen_before_it_and_repeats_are_left_out(monkeypatch):
    shown = [ref_of(name.encode(), "image/png", 1, 1) for name in "abc"]
    pairs = zip(events.episode(1, 2), shown, strict=True)
    first, second, last = [msgspec.structs.replace(step, screenshot=ref) for step, ref in pairs]
    run = of_events(monkeypatch, observations=[first, second, first, second, last, last, first, second])
    rows = list(run.actions)
    assert [row["step"] for row in rows] == [0, 1]
    assert [row["screen"] for row in rows] == [ref.sha256 for ref in shown[:2]]
    assert [row["text"] for row in rows] == [second.taken.text, last.taken.text]
    assert [row["outcome"] for row in rows] == [None, last.end.kind]
    assert rows[0]["version"] == second.taken.versions[0].version


def test_an_action_without_tokens_has_no_version(monkeypatch):
    first, last = events.episode(1, 1)
    assert next(iter(of_events(monkeypatch, observations=[first, last]).actions))["version"] is not None
    unsampled = msgspec.structs.replace(last.taken, tokens=[], logprobs=[], entropies=[], versions=[])
    bare = msgspec.structs.replace(last, taken=unsampled)
    assert next(iter(of_events(monkeypatch, observations=[first, bare]).actions))["version"] is None


def test_a_repeated_optimizer_step_counts_once_with_its_last_metrics(monkeypatch):
    steps = [events.trained_step(train_step=2, metrics={"loss": 1.0}), events.trained_step(train_step=1)]
    again = events.trained_step(train_step=2, metrics={"loss": 2.0})
    rows = list(of_events(monkeypatch, trained=[*steps, again]).train_steps)
    assert [row["train_step"] for row in rows] == [1, 2]
    assert rows[1]["loss"] == 2.0


def test_a_missing_library_is_named(monkeypatch, played: Path):
    real = builtins.__import__

    def without(name, *arguments):
        if name in ("pandas", "polars"):
            raise ImportError(name)
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without)
    orders = dart_streams.open(played).orders
    with pytest.raises(UserError, match=r"pandas is not installed: .* to_polars\(\)"):
        orders.to_pandas()
    with pytest.raises(UserError, match=r"polars is not installed: .* to_pandas\(\)"):
        orders.to_polars()


@pytest.mark.parametrize("source", ["nothing.dart", "some/folder"])
def test_what_is_no_run_is_refused(source: str, tmp_path: Path):
    with pytest.raises(UserError, match="neither a bundle nor the folder of a run"):
        dart_streams.open(tmp_path / source)
    with pytest.raises(UserError, match="no run 'latest'"):
        dart_streams.open(state=tmp_path)


def test_a_bundle_without_screenshots_says_so(played: Path):
    with pytest.raises(UserError, match="capture the run with --blobs"):
        dart_streams.open(played).screenshot("0" * 64)


def test_importing_the_package_imports_nothing_else():
    code = "import sys, dart_streams; print({'console', 'msgspec', 'kafka', 'cassandra'} & {*sys.modules})"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "set()"
