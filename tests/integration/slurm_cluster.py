"""Stand-ins for Slurm's commands: ``sbatch`` starts the tasks of a script at once, with the variables that Slurm sets.

``srun`` runs a command on each node of the job, and ``scancel`` ends jobs by name. Each job has a line in ``jobs``.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

COMMANDS = ("sbatch", "srun", "scancel", "scontrol")


def write_commands(folder: Path) -> Path:
    """Write the commands into ``folder/bin``, which belongs on PATH; return it."""
    place = folder / "bin"
    place.mkdir(parents=True)
    for name in COMMANDS:
        program = place / name
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {__file__} {name} {folder} "$@"\n')
        program.chmod(0o755)
    return place


def read_jobs(folder: Path) -> list[tuple[str, int]]:
    """Return the name and the process group of each task that was started."""
    lines = (folder / "jobs").read_text().splitlines()
    return [(name, int(pid)) for name, _, pid in (line.rpartition(" ") for line in lines)]


def submit(folder: Path, words: list[str]) -> None:
    """Start each task of a batch script, and print the job's id."""
    script = Path(words[-1])
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)=?(.*)$", script.read_text(), re.MULTILINE))
    job = 100 + len(list(folder.glob("*.job")))
    (folder / f"{job}.job").write_text(" ".join(words))
    nodes = int(options["nodes"])
    first, _, last = options.get("array", "").partition("-")
    for task in range(int(first), int(last) + 1) if first else [None]:
        variables = {
            "SLURM_JOB_ID": str(job),
            "SLURM_JOB_NAME": options["job-name"],
            "SLURM_NNODES": str(nodes),
            "SLURM_JOB_NODELIST": f"node[0-{nodes - 1}]" if nodes > 1 else "node0",
            **({} if task is None else {"SLURM_ARRAY_TASK_ID": str(task)}),
        }
        gpus = int(options.get("gpus-per-node", "0"))
        if gpus:
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(gpus)))
        log = Path(options["output"].replace("%a", str(task)).replace("%j", str(job)))
        with log.open("a") as output:
            process = subprocess.Popen(
                ["bash", str(script)],
                env={**os.environ, **variables},
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        with (folder / "jobs").open("a") as jobs:
            jobs.write(f"{options['job-name']} {process.pid}\n")
    sys.stdout.write(f"{job}\n")


def run_step(words: list[str]) -> int:
    """Run a command on each node; return the largest exit code."""
    while words[0].startswith("--"):
        words.pop(0)
    steps = [
        subprocess.Popen(words, env={**os.environ, "SLURM_NODEID": str(node), "SLURM_PROCID": str(node)})
        for node in range(int(os.environ["SLURM_NNODES"]))
    ]
    signal.signal(signal.SIGTERM, lambda *_: [step.terminate() for step in steps])
    return max(step.wait() for step in steps)


def cancel(folder: Path, words: list[str]) -> None:
    """Send SIGTERM to the tasks of the named jobs."""
    names = next(word.partition("=")[2] for word in words if word.startswith("--name=")).split(",")
    for name, pid in read_jobs(folder):
        if name in names:
            try:
                os.killpg(pid, signal.SIGTERM)
            except ProcessLookupError:
                continue


def main() -> int:
    """Run one of the commands."""
    name, folder, words = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    if name == "srun":
        return run_step(words)
    if name == "scontrol":
        sys.stdout.write("".join(f"node{number}\n" for number in range(int(os.environ["SLURM_NNODES"]))))
    else:
        (submit if name == "sbatch" else cancel)(folder, words)
    return 0


if __name__ == "__main__":
    sys.exit(main())
