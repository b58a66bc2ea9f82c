"""The reference of all commands, as docs/cli.md has it: ``python -m dart_streams.cli.reference`` prints it."""

import sys
from collections.abc import Iterator
from typing import Any

import typer.main

from dart_streams.cli.main import COMMANDS, build

HEAD = """# Commands

`dart-streams COMMAND --help` says the same. A command that needs a deployment reads the file of `--config`, by default
`deploy/config/demo.toml`. A command that looks at a run takes `--run`, by default the latest.

This page is generated from `dart_streams/cli/`: `make reference` writes it.
"""
DEFAULT = r" \[default: "
"""How help texts give a default of their own; the brackets are escaped, as they would be markup."""


def markdown() -> str:
    """Return the page."""
    application: Any = typer.main.get_command(build([command.name for command in COMMANDS]))
    return HEAD + "".join(text for name, own in application.commands.items() for text in section(name, own, 2))


def section(name: str, command: Any, level: int) -> Iterator[str]:
    """Yield a command's heading, help, usage and parameters, and those of its own commands."""
    yield f"\n{'#' * level} {name}\n\n{' '.join((command.help or '').split())}\n"
    if hasattr(command, "commands"):
        for inner, own in command.commands.items():
            yield from section(f"{name} {inner}", own, level + 1)
        return
    parameters = [parameter for parameter in command.params if parameter.name != "help"]
    arguments = [usage(one) for one in parameters if one.param_type_name == "argument"]
    options = ["[OPTIONS]"] if len(arguments) < len(parameters) else []
    yield f"\n```\n{' '.join(['dart-streams', name, *options, *arguments])}\n```\n"
    if parameters:
        yield "\n| option | what it is | default |\n|---|---|---|\n"
        yield from map(row, parameters)


def usage(argument: Any) -> str:
    """Return an argument as a usage line has it."""
    name = argument.metavar or argument.name.upper()
    return name if argument.required else f"[{name}]"


def row(parameter: Any) -> str:
    """Return a line of the table of parameters."""
    is_option = parameter.param_type_name == "option"
    name = ", ".join([*parameter.opts, *parameter.secondary_opts]) if is_option else usage(parameter).strip("[]")
    text, _, default = (parameter.help or "").partition(DEFAULT)
    if not default and parameter.default not in (None, "", False):
        default = str(parameter.default)
    return f"| `{name}` | {text} | {default.removesuffix(']')} |\n".replace(
        f"`{name}`", f"`{name}`".replace("|", "\\|")
    )


if __name__ == "__main__":
    sys.stdout.write(markdown())
