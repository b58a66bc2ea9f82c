"""The command line in this process."""

import json
from typing import Any

import structlog
from typer.testing import CliRunner, Result

from console.cli import main


def invoke(*arguments: object) -> Result:
    """Run ``dart-streams`` with ``arguments``; what it raises is in the result."""
    words = [str(argument) for argument in arguments]
    try:
        return CliRunner().invoke(main.build_app(words), words)
    finally:
        structlog.reset_defaults()


def invoke_json(*arguments: object) -> Any:
    """Run ``dart-streams`` with ``--json``; return what it prints, or raise its error."""
    result = invoke(*arguments, "--json")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return json.loads(result.stdout)
