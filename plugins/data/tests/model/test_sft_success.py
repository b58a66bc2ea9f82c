"""A fine-tuned model solves held-out tasks that the model before could not: one engine plays them with both weights.

The gradient is planted: of the pages, only those are taken whose box is within a few pixels of one place.
"""

import asyncio
import itertools
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomli_w

from dart_streams.actions import Click, format
from dart_streams.config import Config, parse
from dart_streams.config.tasks import Task
from dart_streams.screens import smart_resize
from dart_streams.store.blobs import ref_of
from examples.in_memory_run import ObservationLog
from plugins.data.tests.sft_data import write_lines
from tests import events
from tests.unit.workers.env.episodes import runner_of
from topics.action_requests import ActionRequest
from topics.actions import ActionResponse
from topics.values import BlobRef, Sampling
from workers.env.backends.simulated import SIZE, SimulatedBackend, box_center
from workers.env.environment import rescale
from workers.rollout import vllm_settings

os.environ.update(vllm_settings.engine_environment(os.environ))

from dart_streams.policy import tiny, weights
from tests.model.engines import stop_engine
from workers.rollout.vllm_engine import VllmEngine

BIN = Path(sys.executable).with_name("dart-streams")
LIMIT_S = 480
SHOWN, HELD_OUT = 24, 8
PLACE, WITHIN = (80, 105), 6
SETTINGS: dict[str, Any] = {
    "env": {"backend": "simulated", "simulated": {"reset_ms": 0, "step_ms": 0, "evaluate_ms": 0}},
    "policy": {"max_images": 1, "max_texts": 0},
    "rollout": {"max_in_flight": HELD_OUT},
    "trainer": {"micro_batch": 8, "sft": {"steps": 24, "batch": 8, "learning_rate": 2e-3, "heldout": 0.1}},
}


def planted() -> Iterator[Task]:
    """Yield the tasks whose box is near :data:`PLACE`."""
    for seed in itertools.count():
        task = Task(environment="simulated", page="box", seed=seed, max_steps=1, split="train")
        if all(abs(found - wanted) <= WITHIN for found, wanted in zip(box_center(task), PLACE, strict=True)):
            yield task


class Screens(ObservationLog):
    """Keeps screenshots, for the engine; one is asked for before it is written."""

    def __init__(self) -> None:
        super().__init__()
        self.data: defaultdict[str, asyncio.Future[bytes]] = defaultdict(asyncio.get_running_loop().create_future)

    async def put_blob(self, data: bytes, media_type: str, width: int, height: int) -> BlobRef:
        ref = ref_of(data, media_type, width, height)
        if not self.data[ref.sha256].done():
            self.data[ref.sha256].set_result(data)
        return ref

    async def read(self, ref: BlobRef) -> bytes:
        return await self.data[ref.sha256]


class Served:
    """Stands for the rollout workers: the engine answers."""

    partition = 0

    def __init__(self, engine: VllmEngine) -> None:
        self.engine = engine

    async def request(self, request: ActionRequest, timeout_s: float) -> ActionResponse:
        made = await self.engine.generate(request)
        return events.action_response(
            made.text,
            to=request,
            tokens=made.tokens,
            logprobs=made.logprobs,
            entropies=made.entropies,
            versions=made.versions,
        )


async def demonstrate(config: Config, tasks: list[Task], folder: Path) -> Path:
    """Write the solutions of tasks as lines to fine-tune on."""
    size = smart_resize(*SIZE, config.policy.min_pixels, config.policy.max_pixels)
    lines = []
    for task in tasks:
        page = await SimulatedBackend(config).open(task)
        screen = await page.reset(task)
        (folder / f"{task.seed}.png").write_bytes(screen.image)
        action = rescale(await anext(page.demonstrate(task)), SIZE, size)
        assert isinstance(action, Click)
        step = {"image": f"{task.seed}.png", "text": format(action)}
        lines.append({"instruction": screen.instruction, "steps": [step]})
    return write_lines(folder / "shown.jsonl", lines)


async def solved(config: Config, engine: VllmEngine, log: Screens, tasks: list[Task]) -> int:
    """Return how many tasks the served weights solve, greedily."""
    log.observations.clear()
    runner = runner_of(config, SimulatedBackend(config), log, Served(engine))  # type: ignore[arg-type]
    greedy = Sampling(temperature=0.0, max_tokens=config.policy.max_tokens)
    orders = [events.rollout_order(f"o{task.seed}", task_id=task.task_id, sampling=greedy) for task in tasks]
    await asyncio.gather(*(runner.run(order, task, lambda _: None) for order, task in zip(orders, tasks, strict=True)))
    ends = [one[-1].end for one in log.observations.values()]
    assert len(ends) == len(tasks) and all(end is not None and end.reward is not None for end in ends), ends
    return sum(end.reward == 1 for end in ends)


async def play_with(config: Config, models: list[Path], tasks: list[Task], folder: Path) -> list[int]:
    """Return how many tasks each model solves; the engine switches from one to the next."""
    log, found = Screens(), []
    engine = VllmEngine(config, log.read)
    for number, model in enumerate(models):
        uri = str(folder / f"version-{number}")
        version = events.weight_version(number, uri=uri, sha256=weights.save(weights.model_state(model), uri))
        await (engine.load(version) if number else engine.start(version))
        found.append(await solved(config, engine, log, tasks))
    await stop_engine(engine)
    return found


def test_fine_tuning_raises_the_success_on_held_out_tasks(tmp_path):
    untrained, tuned = tmp_path / "untrained", tmp_path / "tuned"
    tiny.build(untrained)
    tables = {
        **SETTINGS,
        "run": {"state_dir": str(tmp_path)},
        "policy": {**SETTINGS["policy"], "path": str(untrained)},
        "trainer": {**SETTINGS["trainer"], "weights_uri": str(tmp_path)},
    }
    config, file = parse(tables), tmp_path / "config.toml"
    file.write_text(tomli_w.dumps(tables))
    tasks = planted()
    shown, held_out = (list(itertools.islice(tasks, count)) for count in (SHOWN, HELD_OUT))
    data = asyncio.run(demonstrate(config, shown, tmp_path))
    tune = (BIN, "train", "--config", file, "--sft", data, "--output", tuned, "--json")
    done = subprocess.run(list(map(str, tune)), capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout)
    assert result["after"]["nll"] < result["before"]["nll"]
    before, after = asyncio.run(play_with(config, [untrained, tuned], held_out, tmp_path))
    assert (before, after) == (0, HELD_OUT)
