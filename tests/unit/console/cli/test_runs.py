"""Commands that look at a run find the latest one, and say in one line when there is none."""

import io

import msgspec
import pytest
import tomli_w
from rich.console import Console

from console.cli import main, options
from console.cli.tasks import table_of
from console.launch import run_start
from console.runs import run_folder
from console.runs.task_history import TaskRow
from dart_streams.config import Config
from dart_streams.errors import UserError
from tests.command_line import invoke
from tests.sources import ROOT

LOOKING = [
    *(("tasks",), ("topics", "describe"), ("trace", "12"), ("store", "diff"), ("store", "rebuild"), ("dlq", "list")),
    *(("dlq", "show", "trajectories"), ("dlq", "redrive", "trajectories", "--all"), ("capture",), ("report",)),
    ("eval",),
]


@pytest.fixture
def state(tmp_path):
    for name in ("one", "two"):
        config = run_folder.RunFolder(tmp_path / "runs" / name).named(Config())
        run_folder.create(config, ROOT / "deploy/config/tasks.toml", name, resume=False)
    return tmp_path


@pytest.mark.parametrize("arguments", LOOKING, ids=" ".join)
def test_without_a_run_there_is_one_line_and_exit_code_2(arguments, tmp_path):
    done = invoke(*arguments, "--state", tmp_path)
    assert isinstance(done.exception, UserError)
    assert done.exception.exit_code == 2
    assert str(done.exception).startswith(f"no run in {tmp_path} yet: start one with `make demo`; ")
    assert done.stdout == ""


@pytest.mark.parametrize("arguments", LOOKING, ids=" ".join)
def test_an_unknown_run_is_refused_with_those_that_are_known(arguments, state):
    done = invoke(*arguments, "--state", state, "--run", "three")
    assert isinstance(done.exception, UserError)
    assert "there are one, two" in str(done.exception)


def test_the_latest_run_is_the_default_and_a_deployment_takes_its_place(state, tmp_path):
    assert options.run_config("", state, None).bus.prefix == "dart.two."
    assert options.run_config("one", state, None).bus.prefix == "dart.one."
    file = tmp_path / "c.toml"
    file.write_text('[bus]\nprefix = "mine."\n')
    assert options.run_config("", state, file).bus.prefix == "mine."
    with pytest.raises(UserError, match="--run and --config name two"):
        options.run_config("one", state, file)


WHY = "3 rollouts because 14 of the last 16 succeeded; at most 4 steps, the longest success"
ROWS = [
    TaskRow(f"miniwob/{task}", 0.875, 8, 10, groups=120, curated=100, dropped=20, pool=4, why=WHY)
    for task in ("click-collapsible-nodelay#17", "click-test#0")
]


@pytest.mark.parametrize("reasons", [False, True])
def test_the_table_of_tasks_is_readable_in_80_columns(reasons):
    console = Console(file=io.StringIO(), width=80)
    console.print(table_of(ROWS, reasons=reasons))
    heading, *lines = console.file.getvalue().splitlines()
    assert all(len(line) <= 80 for line in [heading, *lines])
    names = ["task", "rate", "N", "cap", "groups", "curated", "dropped", "pool", *(["reason"] if reasons else [])]
    assert heading.split() == names
    if not reasons:
        assert [line.split() for line in lines] == [
            [row.task, "0.88", "8", "10", "120", "100", "20", "4"] for row in ROWS
        ]
    assert "…" not in console.file.getvalue()


def test_benchmarks_outside_of_a_checkout_are_refused_in_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as refused:
        main.build_app(["bench"])
    assert refused.value.exit_code == 2
    assert str(refused.value) == "the benchmarks are in the repository, not in the wheel: run this in a checkout of it"


def test_the_spans_of_a_run_are_looked_for_where_its_folder_is_now(state, tmp_path):
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    (state / "runs").rename(moved / "runs")
    config, bundle = options.run_or_bundle("", moved, None)
    assert (config.run.folder, bundle) == (moved / "runs/two", None)


def resumed(state, *arguments: str):
    """Ask for a resumption while the run is held, so that it ends before any process is started."""
    found = run_folder.find(str(state), "two")
    before = found.config_file.read_bytes()
    with run_folder.lock_folder(found.path):
        done = invoke("run", *arguments)
    assert found.config_file.read_bytes() == before
    return done


def test_a_resumed_run_goes_on_with_its_own_configuration_and_model(state, tmp_path):
    recorded = run_folder.find(str(state), "two").config()
    for name in ("two", "latest", "dart.two"):
        assert run_start.resumed_config(name, state, None, print) == recorded
        done = resumed(state, "--resume", name, "--state", str(state))
        assert str(done.exception).startswith("run 'two' still lives")
    recorded = run_folder.find(str(state), "two").config()
    made = msgspec.structs.replace(recorded, policy=msgspec.structs.replace(recorded.policy, path=str(tmp_path)))
    run_folder.write_toml(run_folder.find(str(state), "two").config_file, made)
    shown: list[str] = []
    config = run_start.resumed_config("two", None, recorded, shown.append)
    assert config.policy.path == str(tmp_path) and not [line for line in shown if "policy.path" in line]


def test_what_another_configuration_changes_is_shown(state, tmp_path):
    other, tasks = tmp_path / "other.toml", tmp_path / "few.toml"
    run = {"minutes": 1, "state_dir": str(state)}
    other.write_text(tomli_w.dumps({"run": run, "tasks": {"file": "few.toml"}, "curation": {"max_staleness": 9}}))
    page = {"environment": "miniwob", "page": "p", "max_steps": 3, "train_seeds": [0, 1], "heldout_seeds": [1, 2]}
    tasks.write_text(tomli_w.dumps({"pages": [page]}))
    done = resumed(state, str(other), "--resume", "two")
    assert str(done.exception).startswith("run 'two' still lives")
    said = " ".join(done.stderr.split())
    assert "changes run.minutes: 9.0 -> 1.0" in said
    assert "changes curation.max_staleness: 2 -> 9 (its decisions" in said
    assert "the run keeps its own tasks" in said


@pytest.mark.parametrize("value, said", [("true", "nothing is measured: OTEL_SDK_DISABLED is true"), ("false", "")])
def test_a_run_says_at_its_start_that_nothing_is_measured(state, monkeypatch, value, said):
    monkeypatch.setenv("OTEL_SDK_DISABLED", value)
    done = resumed(state, "--resume", "two", "--state", str(state))
    shown = " ".join(done.stderr.split())
    assert said in shown
    assert ("nothing is measured" in shown) == bool(said)


def test_services_of_a_run_under_way_are_not_stopped(state, monkeypatch: pytest.MonkeyPatch):
    """``down --wipe`` destroyed its log, with exit code 0."""
    stopped: list[bool] = []
    monkeypatch.setattr("console.launch.run_list.is_running", lambda folder: folder.id == "two")
    monkeypatch.setattr(
        "console.launch.services.local.stop_services", lambda *_, wipe, **__: stopped.append(wipe) or []
    )
    file = state / "run.toml"
    file.write_text(tomli_w.dumps({"run": {"state_dir": str(state)}}))
    done = invoke("down", "--wipe", "--config", file)
    assert isinstance(done.exception, UserError) and "run two is under way" in str(done.exception)
    assert invoke("down", "--wipe", "--force", "--config", file).exit_code == 0 and stopped == [True]
