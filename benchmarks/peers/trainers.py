"""Comparison of training: ``dart-streams bench trl``, this project and TRL's GRPOTrainer in turns.

Both start from the same warm policy, play the same single-action pages with the same browser code, and are evaluated on
the same held-out tasks, with all cores for as many minutes. The pool gets no demonstrations.
"""

import asyncio
import contextlib
import itertools
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil
import tomli_w

from benchmarks import demonstration
from benchmarks.peers.page_server import MESSAGE_BYTES, PageServer
from dart_streams.actions import dialects
from dart_streams.config import Config
from dart_streams.config.tasks import Page, TaskSet, load
from dart_streams.errors import UserError
from dart_streams.policy import recipe

PYTHON = Path(".venv/trl/bin/python")
TRAINER = Path(__file__).with_name("trl_trainer.py")
POINTS = 5
"""Evaluations of TRL's policy after the first."""
THREADS = 1
"""Threads of torch, as in this project's trainer."""
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}


SIDES = ("trl", "circle")


def measure(
    config: Config, minutes: float, runs: int, sides: Sequence[str], tell: Callable[[str], None]
) -> dict[str, Any]:
    """Return the runs of ``sides``, in turns. Raises UserError without the peer's environment or the policy."""
    if not PYTHON.is_file():
        raise UserError(f"the peer's environment {PYTHON.parents[1]} is missing: run `make peers`")
    model = recipe.model_folder(config).absolute()
    tasks = TaskSet([page for page in load(Path(config.tasks.file)).pages if page.max_steps == 1])
    found: dict[str, list[dict[str, Any]]] = {"trl": [], "circle": []}
    with tempfile.TemporaryDirectory() as folder:
        chosen = single_steps(config, tasks, model, minutes, Path(folder))
        loads = [psutil.getloadavg()[0]]
        for number, side in itertools.product(range(runs), sides):
            if side == "trl":
                found[side].append(asyncio.run(train_with_trl(PYTHON.absolute(), chosen, tasks, number, Path(folder))))
                tell(f"TRL: {found[side][-1]['points'][-1]}")
            else:
                found[side].append(demonstration.run_once(chosen, None))
                tell(f"the circle: {found[side][-1]['gain']:+.1%} after {found[side][-1]['episodes']} episodes")
            loads.append(round(psutil.getloadavg()[0], 1))
    return (
        {"pages": [page.page for page in tasks.pages], "minutes": minutes, "heldout": len(tasks.heldout)}
        | found
        | {"load_average": loads}
    )


def single_steps(config: Config, tasks: TaskSet, model: Path, minutes: float, folder: Path) -> Config:
    """Return the deployment with single-action pages and a given policy, one held-out episode a task."""
    replace = msgspec.structs.replace
    file = folder / "tasks.toml"
    file.write_text(tomli_w.dumps({"pages": [page_table(page) for page in tasks.pages]}), encoding="utf-8")
    return replace(
        config,
        tasks=replace(config.tasks, file=str(file)),
        policy=replace(config.policy, path=str(model)),
        run=replace(config.run, minutes=minutes, demonstrate=False),
        evaluation=replace(config.evaluation, episodes=len(tasks.heldout)),
    )


def page_table(page: Page) -> dict[str, Any]:
    """Return a page as a table of a task file."""
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in msgspec.structs.asdict(page).items()
    }


def trl_settings(config: Config, tasks: TaskSet, seed: int, socket: Path) -> dict[str, Any]:
    """Return the settings of ``trl_trainer.py``, the deployment's where both have them."""
    seconds = 60 * config.run.minutes
    return {
        "model": config.policy.path,
        "socket": str(socket),
        "system": dialects.SYSTEM,
        "train": [(task.page, task.seed) for task in tasks.train],
        "heldout": [(task.page, task.seed) for task in tasks.heldout],
        "seconds": seconds,
        "every_s": seconds / POINTS,
        "groups": config.trainer.groups_per_step,
        "group_size": config.curation.budget.base,
        "learning_rate": config.trainer.learning_rate,
        "clip_low": config.trainer.clip_low,
        "clip_high": config.trainer.clip_high,
        "grad_clip": config.trainer.grad_clip,
        "temperature": config.evaluation.temperatures[0],
        "max_tokens": config.policy.max_tokens,
        "min_pixels": config.policy.min_pixels,
        "max_pixels": config.policy.max_pixels,
        "threads": THREADS,
        "seed": seed,
    }


async def train_with_trl(python: Path, config: Config, tasks: TaskSet, seed: int, folder: Path) -> dict[str, Any]:
    """Return the points of a training run: seconds, steps, episodes, held-out success."""
    socket, file = folder / "pages", folder / "trl.json"
    server = PageServer(config)
    async with server.serving(socket):
        file.write_text(json.dumps(trl_settings(config, tasks, seed, socket)), encoding="utf-8")
        found, cpu = await run_trl(python, file, folder)
    socket.unlink(missing_ok=True)
    return found | {"episodes_played": server.episodes, "pages_busy_s": round(server.busy_s, 1), "cpu_s": cpu}


async def run_trl(python: Path, file: Path, folder: Path) -> tuple[dict[str, Any], float]:
    """Run the trainer in its environment; return its last output line, and its CPU seconds."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | OFFLINE
    process = await asyncio.create_subprocess_exec(
        python,
        TRAINER,
        file,
        cwd=folder,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=MESSAGE_BYTES,
    )
    assert process.stdout is not None and process.stderr is not None
    errors = asyncio.create_task(process.stderr.read())
    last, cpu = b"", 0.0
    try:
        async for line in process.stdout:
            last = line if line.startswith(b'{"') else last
            with contextlib.suppress(psutil.NoSuchProcess):
                cpu = sum(psutil.Process(process.pid).cpu_times()[:2])
        if await process.wait():
            raise UserError(f"TRL's trainer ended with {process.returncode}: {(await errors).decode()[-2000:]}")
    finally:
        if process.returncode is None:
            process.kill()
    reported: dict[str, Any] = json.loads(last)
    return reported, round(cpu, 1)
