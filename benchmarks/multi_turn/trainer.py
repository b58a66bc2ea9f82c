"""Tokens and CPU time of an optimizer step on recorded trajectories, by window and by rows.

``python -m benchmarks.multi_turn.trainer WINDOW [--alone]`` prints one JSON object for a trainer
in its own process, with one thread and the untrained tiny policy. :func:`measure` runs all of :data:`SETTINGS`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.multi_turn import trajectories
from dart_streams.config import Config, parse

COUNTS = ("rows", "tokens_computed", "tokens_distinct", "images_encoded", "images_distinct")
"""Metrics of the step that are printed."""
SETTINGS = tuple((window, alone) for window in trajectories.WINDOWS for alone in (True, False))
"""Windows of the prompt, and whether each step is a row of its own."""


def measure(rounds: int = 1, steps: int = trajectories.STEPS) -> dict[str, Any]:
    """Return the figures of each setting, in turns of ``rounds``, each in a process of its own."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for _ in range(rounds):
        for window, alone in SETTINGS:
            command = [sys.executable, "-m", __name__, window, "--steps", str(steps), *["--alone"] * alone]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
            name = f"{window}, {'a row a step' if alone else 'rows of steps'}"
            runs.setdefault(name, []).append(json.loads(done.stdout))
    return {name: trajectories.choose_cheapest(of_setting, "core_s") for name, of_setting in runs.items()}


def run_setting(window: str, alone: bool, steps: int) -> dict[str, Any]:
    """Return the figures of one trajectory and of a batch."""
    import torch

    from dart_streams.policy import tiny
    from dart_streams.policy.rendering import renderer_of
    from trainer.data.rows import RowKinds
    from trainer.learning import supported_rows
    from trainer.learning.learner import Learner
    from trainer.ranks import join_job

    torch.set_num_threads(1)
    if alone:
        supported_rows.find_kinds = lambda *_: RowKinds()
    with tempfile.TemporaryDirectory(prefix="trainer-bench-") as scratch, join_job() as ranks:
        model = Path(scratch) / "policy"
        tiny.build(model)
        config = step_config(model, window)
        renderer = renderer_of(model, config.policy)
        learner = Learner(model, renderer, config.trainer, ranks)
        return {
            name: measure_step(learner, config, renderer, lengths)
            for name, lengths in trajectories.scale_batches(steps).items()
        }


def measure_step(learner: Any, config: Config, renderer: Any, lengths: Sequence[int]) -> dict[str, Any]:
    """Return the figures of a step on trajectories of these lengths."""
    made = trajectories.record_group(config, renderer, lengths, seed=len(lengths))
    group = trajectories.ready_group(made, config, renderer)
    cpu = time.process_time()
    metrics = learner.learn([group], 0, lambda: False).metrics
    cpu = time.process_time() - cpu
    counts = {name: int(metrics[name]) for name in COUNTS}
    ratio = counts["tokens_computed"] / counts["tokens_distinct"]
    return {"steps": len(group.samples), **counts, "computed_per_distinct": round(ratio, 3), "core_s": round(cpu, 2)}


def step_config(model: Path, window: str) -> Config:
    """Return the configuration of the measured step."""
    config = parse({"policy": {"path": str(model)}})
    return msgspec.structs.replace(config, policy=trajectories.window_policy(config.policy, window))


def main() -> None:
    """Measure one setting and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("window", choices=trajectories.WINDOWS)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--steps", type=int, default=trajectories.STEPS)
    arguments = parser.parse_args()
    json.dump(run_setting(arguments.window, arguments.alone, arguments.steps), sys.stdout)


if __name__ == "__main__":
    main()
