"""Parts of the shell scripts that ``dart-streams launch`` writes: processes kept alive, and ended with the script."""

import shlex
import sys
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from console.launch import keeper, subreaper
from console.launch.supervisor import ProcessSpec

SCRIPTS = files("console.launch").joinpath("scripts")


def prelude_text(config_file: Path, logs: Path, drain_s: float) -> str:
    """Return the beginning of a script that keeps processes alive."""
    places = {"config": config_file, "logs": logs, "python": sys.executable, "subreaper": subreaper.__file__}
    values = {**places, "keeper": keeper.__name__, "drain_s": f"{drain_s:g}"}
    return "set -euo pipefail\n" + variables_text(values) + SCRIPTS.joinpath("prelude.sh").read_text(encoding="utf-8")


def variables_text(values: Mapping[str, object]) -> str:
    """Return the lines that set variables of a script."""
    return "".join(f"{name}={shlex.quote(str(value))}\n" for name, value in values.items())


def keep_lines(spec: ProcessSpec, config_file: Path) -> list[str]:
    """Return the lines that keep a process alive, with its variables."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in spec.environment.items()]
    words = [*(["env", *variables] if variables else []), command_words(spec.command, config_file)]
    group = "last" if spec.last else "workers"
    return [f"keep {shlex.quote(spec.name)} {' '.join(words)}", f"{group}+=($!)"]


def command_words(command: tuple[str, ...], config_file: Path) -> str:
    """Return a command as words of a script that has the configuration file in a variable."""
    return " ".join('"$config"' if word == str(config_file) else shlex.quote(word) for word in command)
