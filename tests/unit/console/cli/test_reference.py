from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from console.cli.main import COMMANDS, build_app
from docs.reference import commands_page

PAGE = Path(__file__).parents[4] / "docs/cli.md"


def test_the_page_is_that_of_the_present_commands(monkeypatch):
    monkeypatch.chdir(PAGE.parents[1])
    assert PAGE.read_text() == commands_page(), "write it again: make reference"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_and_every_option_has_a_help_text(command, monkeypatch):
    monkeypatch.chdir(PAGE.parents[1])
    todo = [typer.main.get_command(build_app([command.name])).commands[command.name]]
    for one in todo:
        assert one.help, one.name
        todo += getattr(one, "commands", {}).values()
        for parameter in one.params:
            assert parameter.help, f"{one.name} {parameter.name}"


def test_a_default_in_a_help_text_is_not_taken_for_markup():
    assert "[default: the latest]" in " ".join(
        CliRunner().invoke(build_app(["tasks"]), ["tasks", "--help"]).stdout.split()
    )
