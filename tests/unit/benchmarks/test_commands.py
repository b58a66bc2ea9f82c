"""The commands of ``dart-streams bench``."""

import ast
import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest
import typer

from benchmarks import command_line, commands
from tests.command_line import invoke, invoke_json

COMMANDS: Mapping[str, Any] = typer.main.get_command(commands.app).commands  # type: ignore[attr-defined]
SMALL = {
    "reducers": "--trajectories 300 --tasks 20 --slots 4",
    "bundle": "{folder}/bundle.dart --trajectories 200 --tasks 10 --slots 4",
    "simulate": "--envs 8 --hours 1 --seeds 1",
    "routing": "--slots 8 --workers 2 --hours 1 --seeds 1",
    "fuzz": "records --minutes 0.01 --folder {folder}",
}
"""Commands without services, and the arguments of a small size."""


def test_commands_start_without_their_benchmarks():
    code = "import sys, benchmarks.commands; print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name for name in ast.literal_eval(done.stdout) if name.startswith("benchmarks.")}
    packages = {"benchmarks.feedback", "benchmarks.learning", "benchmarks.multi_turn", "benchmarks.peers"}
    assert {name for name in loaded - packages if "command" not in name} == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_can_print_json(name):
    assert "--json" in {option for parameter in COMMANDS[name].params for option in parameter.opts}


@pytest.mark.parametrize("name", SMALL)
def test_a_command_without_services_measures_a_small_size(name, tmp_path):
    assert invoke_json("bench", name, *SMALL[name].format(folder=tmp_path).split())


def test_without_json_a_command_prints_lines():
    result = invoke("bench", "reducers", *SMALL["reducers"].split())
    assert (result.exit_code, result.stdout[0]) == (0, " "), result.output


def test_parts_are_printed_one_by_one_or_as_one_json_document(capsys):
    printed = []

    def second() -> dict[str, Any]:
        printed.append(capsys.readouterr().out)
        raise KeyboardInterrupt

    parts = {"first part": lambda: {"window": {"tokens": 7}}, "second part": second}
    with pytest.raises(KeyboardInterrupt):
        command_line.show_parts(parts, as_json=False)
    assert "first part" in printed[0] and "tokens 7" in printed[0]
    command_line.show_parts({"first": lambda: {"tokens": 7}, "second": lambda: {"tokens": 8}}, as_json=True)
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"first": {"tokens": 7}, "second": {"tokens": 8}}
    assert '{"first": {"tokens": 7}}' in captured.err
