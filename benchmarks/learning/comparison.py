"""The two halves of the benchmark: record screens here, play runs in the model environment."""

import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec

from benchmarks.learning import recording, results, screens, variants
from benchmarks.learning.results import LearningRun
from console.launch import processes
from dart_streams.config import tasks
from dart_streams.errors import UserError

Note = Callable[[str], None]
RESULTS = "learning.jsonl"
REPORT_INTERVAL = 100
"""Recorded problems between two progress notes."""


class Plan(msgspec.Struct, frozen=True):
    """A comparison; ``only`` names variants (empty: all), ``folder`` keeps recordings and results."""

    file: Path
    folder: Path
    seeds: list[int]
    episodes: int
    only: list[str]


def play_plan(plan: Plan, note: Note) -> list[LearningRun]:
    """Make missing runs; return all runs of the plan. Raises UserError if the model environment or a run fails."""
    chosen = variants.select_variants(variants.read(plan.file), plan.only)
    recorded = recorded_screens(plan, note)
    play(plan, recorded, note)
    makers = {results.made_by(config, recorded.name, plan.episodes): name for name, config in chosen.items()}
    runs = results.read(plan.folder / RESULTS)
    return [
        msgspec.structs.replace(run, variant=makers[run.made_by])
        for run in runs
        if run.made_by in makers and run.seed in plan.seeds
    ]


def recorded_screens(plan: Plan, note: Note) -> Path:
    """Return the file of recorded screens, recorded now if missing."""
    base = variants.read(plan.file)[variants.BASE]
    task_set = tasks.load(Path(base.tasks.file))
    file = screens.file_of(plan.folder, task_set, base.env.miniwob.pages_folder)
    if not file.is_file():

        def report(done: int, of: int) -> None:
            if done % REPORT_INTERVAL == 0:
                note(f"recorded {done} of {of} problems")

        screens.write(file, asyncio.run(recording.record(base, recording.tasks_to_record(task_set), report)))
    return file


def play(plan: Plan, recorded: Path, note: Note) -> None:
    """Play runs in the model environment; pass on its output."""
    python = processes.find_programs().model.with_name("python")
    if not python.exists():
        raise UserError(f"{python} is missing: run `make setup`")
    command = [python, "-m", "benchmarks.learning.play", recorded, plan.folder / RESULTS, "--variants", plan.file]
    command += ["--episodes", plan.episodes, "--seeds", *plan.seeds, "--only", *plan.only]
    with subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            note(line.rstrip())
    if process.returncode:
        raise UserError(f"playing ended with exit code {process.returncode}: see above")
