"""``dart-streams bench multi-turn``, without torch."""

import subprocess
from importlib.util import find_spec
from typing import Annotated

import typer

from benchmarks.command_line import show_parts
from console.cli.options import AsJson

app = typer.Typer()


@app.command()
def multi_turn(
    rounds: Annotated[int, typer.Option(help="Turns of each setting; the one with the least CPU time counts.")] = 1,
    steps: Annotated[int, typer.Option(help="Steps of the longest trajectory.", min=4)] = 30,
    as_json: AsJson = False,
) -> None:
    """Tokens computed for each distinct token of long trajectories, in rollout and training, by window of the prompt.

    One trajectory of 30 steps and a batch of 8, with the tiny policy; no services. A round takes about six minutes.
    """
    if find_spec("torch") is None:  # It needs the model environment.
        from console.launch import processes

        program = [str(processes.find_programs().model), "bench", "multi-turn", "--rounds", str(rounds)]
        program += ["--steps", str(steps), *["--json"] * as_json]
        raise typer.Exit(subprocess.run(program, check=False).returncode)
    from benchmarks.multi_turn import packers, rollout, trainer

    parts = {
        "rollout": lambda: rollout.measure(rounds, steps),
        "training": lambda: trainer.measure(rounds, steps),
        "packing rules": lambda: packers.measure(steps),
    }
    show_parts(parts, as_json)
