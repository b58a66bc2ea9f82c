"""Stand-in for the program of the model environment: ``dart-streams`` without torch and vLLM.

It makes an empty directory of the tiny policy, trains with the stand-in trainer, and serves scripted answers. Its
command line and its environment are those that it was started with.
"""

import runpy
import sys
from pathlib import Path

import msgspec

from console.cli.main import main
from console.launch.processes import Programs
from console.runs.run_folder import write_toml
from dart_streams.config import load
from dart_streams.config import tasks as task_sets
from dart_streams.policy import recipe
from tests.sources import ROOT


def write_programs(folder: Path) -> Programs:
    """Write the stand-in beside the streams' program; return the programs."""
    program = folder / "model" / "bin" / "dart-streams"
    program.parent.mkdir(parents=True)
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.integration.model_program import run_program\nrun_program(sys.argv[1:])\n"
    )
    program.chmod(0o755)
    return Programs(Path(sys.executable).parent / "dart-streams", program)


def run_program(words: list[str]) -> None:
    """Do what a command of the model environment asks for."""
    place = words.index("--config") + 1
    file = Path(words[place])
    config = load(file, recorded=True)
    if words[0] == "policy":
        path = recipe.tiny_policy_folder(config, task_sets.load(file.parent / config.tasks.file))
        path.mkdir(parents=True)
    elif words[0] == "train":
        sys.argv = ["stand_in_trainer", str(file)]
        runpy.run_module("benchmarks.stand_in_trainer", run_name="__main__")
    else:
        scripted = msgspec.structs.replace(config.rollout, engine="scripted")
        other = file.with_name(f"{words[-1]}.toml")
        write_toml(other, msgspec.structs.replace(config, rollout=scripted))
        sys.argv = ["dart-streams", *words[:place], str(other), *words[place + 1 :]]
        main()
