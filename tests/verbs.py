"""Start every verb of an installed ``dart-streams``, and print those that fail as JSON: ``python -P tests/verbs.py``.

It imports the installed package alone and runs in a folder of its own, so it fails where a verb needs the checkout.
"""

import contextlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

from console.cli.main import COMMANDS
from dart_streams.config.recipes import known_recipes

HERE = Path(__file__).resolve().parent
PROGRAM = Path(sys.executable).with_name("dart-streams")
BUNDLE = str(HERE / "unit/golden/bundle.v1.dart")
BACKENDS = ("androidworld", "gymnasium", "openenv")
"""Those that an entry point of this project brings."""
CONFIG = """
[bus]
servers = "127.0.0.1:1"
wait_s = 0.1
[store]
port = 1
wait_s = 0.1
[tasks]
file = "{tasks}"
[env]
backend = "{backend}"
"""
AWAY = "no Kafka broker at 127.0.0.1:1"
KINDS = ("env", "rollout", "recorder", "curator", "monitor")
PROCESSES = {
    "streams": {("topics", "apply"): AWAY} | {("worker", kind): AWAY for kind in KINDS},
    "model": {("worker", "rollout"): AWAY, ("train",): "no model directory"},
}
"""What each environment starts in a deployment, and what ends it here, after it has read all else."""
SIDE = "model" if importlib.util.find_spec("torch") else "streams"


def data_verbs() -> Iterator[tuple[str, ...]]:
    """Yield commands that read files of the package."""
    yield "config", "check", *(f"{name}.toml" for name in (*BACKENDS, *known_recipes()))
    yield "topics", "schema"
    yield "topics", "export", "--config", "simulated.toml"
    yield "replay", BUNDLE
    yield "trace", "v1", "--bundle", BUNDLE
    if SIDE == "streams":
        yield "ui", BUNDLE, "--export", "page.html"
        yield "store", "roles", "--config", "simulated.toml"


def helps() -> dict[str, str]:
    """Return what verbs say that cannot print their help; all in one process, which saves a second each."""
    from console.cli.main import execute

    failed = {}
    for command in COMMANDS:
        sys.argv = ["dart-streams", command.name, "--help"]
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            code = execute(sys.argv[1:])
        if code or "Usage" not in printed.getvalue():
            failed[f"{command.name} --help"] = f"{code}: {printed.getvalue()[-500:]}"
    return failed


def load_entries() -> None:
    """Load what the entry points of the streams' side name."""
    for group in ("checks", "commands", "environments") if SIDE == "streams" else ():
        for entry in entry_points(group=f"dart_streams.{group}"):
            with contextlib.suppress(ModuleNotFoundError if entry.name == "env.mcp" else ()):
                entry.load()


def started(*arguments: str) -> tuple[int, str]:
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, check=False, timeout=300)
    return done.returncode, (done.stdout + done.stderr)[-1000:]


def check() -> dict[str, str]:
    """Return what each failed verb said."""
    tasks = HERE / "integration/circle-tasks.toml"
    for backend in ("simulated", *BACKENDS):
        Path(f"{backend}.toml").write_text(CONFIG.format(backend=backend, tasks=tasks))
    with Path("simulated.toml").open("a") as file:
        file.write('[rollout]\nengine = "scripted"\n')
    for recipe in known_recipes():
        Path(f"{recipe}.toml").write_text(f'recipe = "{recipe}"\n' + CONFIG.format(backend="simulated", tasks=tasks))
    load_entries()
    failed = helps()
    # The benchmarks are in the checkout alone, and their verb says so.
    if "not in the wheel" in failed.get("bench --help", ""):
        del failed["bench --help"]
    if len(known_recipes()) < 2:
        failed["recipes"] = f"known are {known_recipes()}"
    for verb in data_verbs():
        code, said = started(*verb)
        if code:
            failed[" ".join(verb)] = said
    for verb, refusal in PROCESSES[SIDE].items():
        code, said = started(*verb, "--config", "simulated.toml")
        if refusal not in said:
            failed[" ".join(verb)] = f"{code}: {said}"
    return failed


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.stdout.write(json.dumps(check()))
