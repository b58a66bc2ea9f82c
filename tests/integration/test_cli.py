import importlib
import json
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest

from console.cli import doctor_checks, main, options, process
from console.cli.options import read_config
from console.runs import run_folder
from dart_streams.config import Bus, Config, Env, Policy, Run, Tasks, load
from dart_streams.errors import ConfigError, UserError
from tests import fork_server
from tests.sources import ROOT

BOUND_S = 120.0


def dart_streams(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    return fork_server.run([fork_server.PROGRAM, *arguments], text=True, timeout=BOUND_S, cwd=folder)


def test_help_names_every_command_without_importing_it():
    done = dart_streams("--help")
    assert done.returncode == 0
    for command in main.COMMANDS:
        assert command.name in done.stdout


def test_a_mistake_of_the_user_is_one_line_and_an_exit_code(tmp_path: Path):
    file = tmp_path / "c.toml"
    file.write_text("[bus]\nserver = 'x'\n")
    done = dart_streams("up", "--config", str(file))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {file}: unknown key 'bus.server': did you mean 'servers'?\n"


def test_an_error_s_text_is_printed_as_it_is_even_with_brackets(tmp_path: Path):
    file = tmp_path / "[red]c[/nothing].toml"
    done = dart_streams("up", "--config", str(file))
    assert str(file) in done.stderr.replace("\n", "")


def test_a_run_of_a_model_that_is_not_there_ends_before_it_leaves_anything(tmp_path: Path):
    file = tmp_path / "c.toml"
    file.write_text("[policy]\npath = '/no/such/model'\n")
    done = dart_streams("run", str(file), folder=tmp_path)
    assert done.returncode == 2
    assert "policy.path: /no/such/model is no Hugging Face model directory" in done.stderr
    assert not (tmp_path / ".dart").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("upp",), "No such command"),
        (("worker", "environment"), "rollout"),
        (("topics", "schema", "order"), "rollout-orders"),
        (("run", "--before"), "--before goes with --attached"),
        (("run", "--attached", "--id", "x"), "--before goes with --attached"),
        (("run", "--attached", "--resume", "x"), "--before goes with --attached"),
        (("run", "--state", "."), "--state goes with --resume alone"),
        (("run", "c.toml", "--resume", "x", "--state", "."), "--state goes with --resume alone"),
        (("run", "--resume", "x", "--init", "."), "leave out --id and --init"),
    ],
)
def test_a_wrong_command_line_is_refused_with_the_reason(arguments: tuple[str, ...], message: str):
    done = dart_streams(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


@pytest.mark.parametrize(("missing", "there"), [("torch", "model"), ("vllm.engine", "model"), ("faust", "streams")])
def test_a_library_of_the_other_environment_is_an_error_that_names_it(missing: str, there: str):
    error = main.other_environment(["worker", "x", "--id", "a b"], missing)
    assert isinstance(error, UserError)
    assert f".venv/{there}/bin/dart-streams worker x --id 'a b'" in str(error)


def test_a_library_that_no_environment_has_keeps_its_traceback():
    assert main.other_environment(["up"], "lost") is None


@pytest.mark.skipif(find_spec("torch") is not None, reason="the model environment has torch")
def test_the_trainer_is_refused_here_with_the_command_that_works():
    done = dart_streams("train")
    assert done.returncode == 2
    assert ".venv/model/bin/dart-streams train" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_task_file_is_relative_to_the_configuration_that_names_it(tmp_path: Path):
    (tmp_path / "deep").mkdir()
    file = tmp_path / "deep" / "c.toml"
    file.write_text('[tasks]\nfile = "../tasks.toml"\n')
    assert Path(read_config(file).tasks.file).resolve() == (tmp_path / "tasks.toml").resolve()


def test_without_a_configuration_there_are_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert read_config(None).run.minutes == load(ROOT / "deploy/config/demo.toml").run.minutes, "the checkout's"
    monkeypatch.setattr(options, "CHECKOUT", tmp_path)
    assert read_config(None) == Config()


def test_a_process_exits_with_what_its_run_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "pretend_worker.py").write_text(
        "def run(config, worker_id):\n    return 7 if worker_id == 'w' else 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(process.MODULES, "rollout", "pretend_worker")
    importlib.invalidate_caches()
    with pytest.raises(SystemExit) as ended:
        process.run_worker("rollout", name="w")
    assert ended.value.code == 7


@pytest.mark.parametrize("name", ["rollout-orders", ""])
def test_schemas_are_json(name: str):
    done = dart_streams("topics", "schema", *([name] if name else []))
    schema = json.loads(done.stdout)
    assert "$ref" in (schema if name else schema["rollout-orders/1"])


def test_the_doctor_gives_advice_and_exits_with_1_if_something_is_missing(tmp_path: Path):
    (tmp_path / "c.toml").write_text('tasks.file = "none.toml"\n')
    done = dart_streams("doctor", "--json", "--config", "c.toml", folder=tmp_path)
    findings = {finding["check"]: finding for finding in json.loads(done.stdout)}
    assert done.returncode == 1
    assert findings["tasks"]["status"] == "fail"
    assert "none.toml" in findings["tasks"]["advice"]
    assert findings["environments"]["status"] == "ok", "from any folder"
    assert all(f["advice"] for f in findings.values() if f["status"] != "ok")


def test_the_doctor_advises_set_up_where_an_environment_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv" / "streams"))
    finding = doctor_checks.check_environments(Config())
    assert (finding.status, finding.found) == ("fail", "not complete: .venv/streams, .venv/model")
    assert "make setup" in finding.advice


def test_the_doctor_names_who_sits_on_the_broker_s_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        config = Config(bus=Bus(servers=f"127.0.0.1:{server.getsockname()[1]}"))
        finding = doctor_checks.check_broker(config)
    assert finding.status == "fail"
    assert "taken by pid" in finding.found


def test_the_doctor_only_advises_up_where_up_would_help():
    assert doctor_checks.check_broker(Config(bus=Bus(servers="127.0.0.1:1"))).advice == "dart-streams up"
    far = doctor_checks.check_broker(Config(bus=Bus(servers="kafka.invalid:9092")))
    assert (far.status, far.advice) == ("fail", "start it, or set bus.servers")


def test_the_doctor_looks_at_the_configured_model_tasks_browser_and_disk(tmp_path: Path):
    config = Config(
        policy=Policy(path=str(tmp_path)),
        tasks=Tasks(file=str(tmp_path / "t.toml")),
        env=Env(backend="simulated"),
        run=Run(state_dir=str(tmp_path / "not" / "yet")),
    )
    assert doctor_checks.check_model(config).found == f"{tmp_path} has no config.json, tokenizer_config.json"
    assert "no task set" in doctor_checks.check_tasks(config).advice
    assert doctor_checks.check_browser(config).status == "ok"
    assert str(tmp_path) in doctor_checks.check_disk(config).found


@pytest.mark.parametrize(("gib", "status"), [(1.0, "fail"), (3.0, "warn"), (10.0, "ok")])
def test_amounts_are_judged_by_what_is_needed_and_what_is_enough(gib: float, status: str):
    assert doctor_checks.judge_amount("disk", gib, 3, 10, "free", "make room").status == status


def test_a_run_starts_from_the_model_directory_that_is_named(tmp_path: Path):
    run = importlib.import_module("console.launch.run_start")
    model = tmp_path / "model"
    model.mkdir()
    with pytest.raises(ConfigError, match=r"model is no Hugging Face model directory"):
        run.with_model(model, Config())
    (model / "config.json").write_text("{}")
    assert run.with_model(model, Config(policy=Policy(model_id="mine"))).policy == Policy(
        model_id="mine", path=str(model)
    )
    assert run.with_model(None, Config()) == Config()


def test_a_run_that_lives_is_not_resumed(tmp_path: Path):
    """Its configuration, which restarted processes read, does not change either."""
    base = load(ROOT / "deploy/config/demo.toml")
    config = msgspec.structs.replace(base, run=msgspec.structs.replace(base.run, state_dir=str(tmp_path)))
    made = run_folder.create(config, ROOT / "deploy/config/tasks.toml", "lives", resume=False)
    before = made.config_file.read_bytes()
    changed = tmp_path / "changed.toml"
    tasks = ROOT / "deploy/config/tasks.toml"
    changed.write_text(f'[run]\nminutes = 1.0\nstate_dir = "{tmp_path}"\n[tasks]\nfile = "{tasks}"\n')
    with run_folder.lock_folder(made.path):
        done = dart_streams("run", str(changed), "--resume", "lives")
    assert (done.returncode, made.config_file.read_bytes()) == (2, before)
    assert "still lives: end it first" in done.stderr
