"""The command line itself: version, help, completions, and Ctrl-C while it starts."""

import os
import signal
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from console.cli import main
from console.cli.main import INTERRUPTED, build_app, wanted_by
from console.cli.process import worker_name
from dart_streams.errors import UserError
from dart_streams.version import VERSION
from tests.fork_server import PROGRAM, run
from tests.installed_packages import install_metadata

COMMAND = [str(Path(sys.executable).with_name("dart-streams"))]


def test_the_version_is_that_of_the_package():
    done = CliRunner().invoke(build_app([]), ["--version"])
    assert (done.exit_code, done.stdout) == (0, f"dart-streams {VERSION}\n")


@pytest.mark.parametrize("arguments", [["-h"], ["topics", "-h"], ["topics", "plan", "-h"]])
def test_the_short_option_of_help_works_at_each_level(arguments):
    done = CliRunner().invoke(build_app(["topics"]), arguments)
    assert done.exit_code == 0
    assert "Usage" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "environ", "wanted"),
    [
        (["--version"], {}, []),
        (["run", "--id", "x"], {}, ["run"]),
        ([], {"_DART_STREAMS_COMPLETE": "complete_bash", "COMP_WORDS": "dart-streams run --re"}, ["run"]),
        ([], {"_DART_STREAMS_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "dart-streams topics p"}, ["topics"]),
        ([], {"_DART_STREAMS_COMPLETE": "complete_bash", "COMP_WORDS": "dart-streams "}, []),
        ([], {"COMP_WORDS": "dart-streams run"}, []),
    ],
)
def test_the_imported_command_is_the_one_named_or_completed(arguments, environ, wanted):
    assert wanted_by(arguments, environ) == wanted


def test_an_installed_package_brings_a_verb_and_a_missing_one_is_named(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    assert CliRunner().invoke(build_app(["platform"]), ["platform"]).exit_code == 2
    install_metadata(tmp_path, "package", "dart_streams.commands", "platform = platform:python_version")
    assert CliRunner().invoke(build_app(["platform"]), ["platform"]).exit_code == 0
    monkeypatch.setattr(main, "find_verbs", lambda name: [])
    with pytest.raises(UserError, match="worker tracker: dart-data is not installed here: run `make dev`"):
        main.load_verb("worker.tracker")


def test_the_options_of_a_command_are_completed(monkeypatch):
    environ = {"_DART_STREAMS_COMPLETE": "complete_bash", "COMP_WORDS": "dart-streams run --resu", "COMP_CWORD": "2"}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    done = subprocess.run(COMMAND, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["--resume"]


def test_ctrl_c_while_a_command_is_imported_ends_with_one_line(monkeypatch, capsys):
    # Shells start background jobs with SIGINT ignored.
    monkeypatch.setattr(main, "load_command", lambda command: signal.default_int_handler(signal.SIGINT, None))
    monkeypatch.setattr(sys, "argv", ["dart-streams", "run"])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == INTERRUPTED
    assert capsys.readouterr() == ("", "interrupted\n")


def test_the_module_that_takes_ctrl_c_is_there_before_the_libraries():
    code = "import sys, console.cli.main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert not {"typer", "rich", "msgspec", "structlog"} & set(done.stdout.split())


def test_replicas_of_a_container_are_named_by_their_host():
    assert worker_name("env", "env-{host}") == f"env-{socket.gethostname()}"
    assert worker_name("env", "") == "env-0"
    assert worker_name("env", "left") == "left"


@pytest.mark.skipif(find_spec("pyarrow") is not None, reason="this environment has pyarrow")
def test_without_its_libraries_the_command_names_the_one_to_run(tmp_path):
    done = run([PROGRAM, "data", "export", tmp_path / "a set.parquet", "--run", "one"], text=True, timeout=60)
    assert done.returncode == 2
    assert "this needs pyarrow, which only .venv/data has" in done.stderr
    assert f".venv/data/bin/dart-streams data export '{tmp_path}/a set.parquet' --run one" in done.stderr
    assert "`make data` makes it" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("library", sorted(main.DATA_LIBRARIES))
def test_each_library_of_the_data_environment_is_known_as_such(library):
    error = main.other_environment(["worker", "tracker"], f"{library}.inner")
    assert ".venv/data/bin/dart-streams worker tracker" in str(error)


@pytest.mark.parametrize("locale", [{"LC_ALL": "C"}, {"LC_ALL": "POSIX"}, {"LANG": "C"}, {"LC_CTYPE": "C", "LANG": ""}])
def test_files_names_and_output_are_utf_8_in_any_locale(tmp_path: Path, locale: dict[str, str]):
    file, wrong = tmp_path / "é\u2028.toml", tmp_path / "ü.toml"
    file.write_text('run.state_dir = "日本"', encoding="utf-8")
    wrong.write_text("é = 1", encoding="utf-8")
    others = {"PATH": os.environ["PATH"], "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", **locale}
    shown, refused = (
        subprocess.run([*COMMAND, "config", *words], capture_output=True, env=others, timeout=60, check=False)
        for words in (["show", "--diff", str(file)], ["check", str(wrong)])
    )
    assert (shown.returncode, shown.stderr, refused.returncode) == (0, b"", 2)
    assert "日本" in shown.stdout.decode()
    assert "ü.toml is not TOML" in refused.stdout.decode()
