"""Prompt tokens that the real engine computes for recorded trajectories, by window and prefix cache.

``python -m benchmarks.multi_turn.rollout WINDOW [--no-prefix-cache]`` prints one JSON object for an engine in its own
process, with the untrained tiny policy. :func:`measure` runs all of :data:`SETTINGS`.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.multi_turn import trajectories
from benchmarks.synthetic_groups import SyntheticBacklog
from benchmarks.vllm_engine import prepare_policy
from dart_streams.clock import now_ms
from dart_streams.config import Config, parse
from dart_streams.telemetry import setup
from topics.action_requests import ActionRequest
from topics.observations import Observation
from topics.values import BlobRef, Sampling
from workers.rollout import vllm_settings
from workers.rollout.engine import Engine, Generation

SETTINGS = (("sliding", False), ("sliding", True), ("blocks", True))
"""Windows and whether the prefix cache is on."""
ANSWER = Sampling(max_tokens=8)
"""Sampling of answers. They are not part of the next prompt, which has the recorded ones."""


def measure(rounds: int = 1, steps: int = trajectories.STEPS) -> dict[str, Any]:
    """Return the figures of each setting, in turns of ``rounds``, each in a process of its own."""
    found: dict[str, list[dict[str, Any]]] = {}
    for _ in range(rounds):
        for window, cached in SETTINGS:
            command = [sys.executable, "-m", __name__, window, "--steps", str(steps)]
            done = subprocess.run(
                command if cached else [*command, "--no-prefix-cache"], stdout=subprocess.PIPE, check=True
            )
            found.setdefault(f"{window}, cache {'on' if cached else 'off'}", []).append(json.loads(done.stdout))
    return {setting: trajectories.choose_cheapest(runs, "core_ms") for setting, runs in found.items()}


async def run_setting(window: str, cached: bool, steps: int) -> dict[str, Any]:
    """Return the figures of one trajectory and of a batch, with a new engine."""
    os.environ.update(vllm_settings.engine_environment(os.environ))
    from dart_streams.policy.rendering import renderer_of
    from workers.rollout.vllm_engine import VllmEngine

    with tempfile.TemporaryDirectory(prefix="rollout-bench-") as scratch:
        model, first = prepare_policy(Path(scratch), None)
        config = engine_config(model, scratch, window, cached)
        renderer = renderer_of(model, config.policy)
        blobs: dict[str, bytes] = {}

        async def read(ref: BlobRef) -> bytes:
            return blobs[ref.sha256]

        engine = VllmEngine(config, read)
        await engine.start(first)
        found = {}
        try:
            for name, lengths in trajectories.scale_batches(steps).items():
                group = trajectories.record_group(config, renderer, lengths, seed=len(lengths))
                blobs.update(group.blobs)
                found[name] = await play_group(engine, group, config, renderer)
            found["moved"] = await play_moved(engine, group.observations.popitem()[1], config)
        finally:
            await engine.stop()
        return found


async def play_group(engine: Any, group: SyntheticBacklog, config: Config, renderer: Any) -> dict[str, Any]:
    """Play all members of a group at once, each step after the one before; return the cost."""
    before = await count_encodings(engine)
    cpu, started = time.process_time(), time.perf_counter()
    played = await asyncio.gather(
        *(play_trajectory(engine, observations, config) for observations in group.observations.values())
    )
    cpu, wall = time.process_time() - cpu, time.perf_counter() - started
    answers = [answer for trajectory in played for answer in trajectory]
    counts = trajectories.count_tokens(group.observations.values(), config.policy, renderer)
    computed = sum(answer.prompt_tokens - answer.cached_tokens for answer in answers)
    return {
        "requests": len(answers),
        "prompt_tokens": sum(answer.prompt_tokens for answer in answers),
        "computed_tokens": computed,
        "distinct_tokens": counts.distinct,
        "computed_per_distinct": round(computed / counts.distinct, 3),
        "cached_share": cached_share(answers),
        "screenshots": counts.screens,
        "encodings": await count_encodings(engine) - before,
        "core_ms": round(cpu * 1000 / len(answers), 2),
        "requests_s": round(len(answers) / wall, 2),
    }


async def play_moved(engine: Any, observations: Sequence[Observation], config: Config) -> dict[str, Any]:
    """Play a trajectory whose worker changes at half of its steps: the next one has empty caches."""
    half = len(observations) // 2
    await engine.thread.call(empty_caches)
    cpu = time.process_time()
    before = await play_trajectory(engine, observations, config, range(half))
    await engine.thread.call(empty_caches)
    after = await play_trajectory(engine, observations, config, range(half, len(observations) - 1))
    return {
        "step": half,
        "cached_share_before": cached_share(before[-3:]),
        "cached_share_moved": cached_share(after[:1]),
        "cached_share_after": cached_share(after[1:4]),
        "computed_tokens": sum(answer.prompt_tokens - answer.cached_tokens for answer in [*before, *after]),
        "core_ms": round((time.process_time() - cpu) * 1000 / len([*before, *after]), 2),
    }


def empty_caches(core: Any) -> None:
    """Empty the prefix cache and the encoder cache of an idle engine."""
    core.caches.drop_prefixes()
    core.caches.drop_encodings()


async def count_encodings(engine: Any) -> int:
    """Return how many screenshots the vision tower has computed."""
    return int(await engine.thread.call(lambda core: core.caches.encodings))


def cached_share(answers: Sequence[Generation]) -> float:
    """Return the share of prompt tokens from the prefix cache."""
    cached = sum(answer.cached_tokens for answer in answers)
    return round(cached / sum(answer.prompt_tokens for answer in answers), 3)


async def play_trajectory(
    engine: Engine, observations: Sequence[Observation], config: Config, steps: range | None = None
) -> list[Generation]:
    """Ask the engine for recorded actions in turn, by default all; return the answers."""
    answers = []
    asked = trajectories.step_prompts(observations, config.policy)
    for step in steps or range(len(asked)):
        turns, trajectory = asked[step], observations[0].trajectory_id
        request = ActionRequest(
            request_id=f"{trajectory}-{step}",
            trajectory_id=trajectory,
            step=step,
            turns=turns,
            sampling=ANSWER,
            reply_partition=0,
            deadline_ms=now_ms() + 600_000,
        )
        answers.append(await engine.generate(request))
    return answers


def engine_config(model: Path, scratch: str, window: str, cached: bool) -> Config:
    """Return the configuration of the measured engine."""
    config = parse(
        {
            "policy": {"path": str(model)},
            "env": {
                "backend": "desktop",
                "desktop": {"width": trajectories.SCREEN[0], "height": trajectories.SCREEN[1]},
            },
            "rollout": {"max_in_flight": 8, "vllm": {"prefix_cache": cached}},
            "trainer": {"weights_uri": scratch},
        }
    )
    return msgspec.structs.replace(config, policy=trajectories.window_policy(config.policy, window))


def main() -> None:
    """Measure one setting and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("window", choices=trajectories.WINDOWS)
    parser.add_argument("--prefix-cache", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--steps", type=int, default=trajectories.STEPS)
    arguments = parser.parse_args()
    setup.start_logs("bench")
    json.dump(asyncio.run(run_setting(arguments.window, arguments.prefix_cache, arguments.steps)), sys.stdout)
    sys.stdout.write("\n")
    sys.stdout.flush()
    os._exit(0)  # as the worker does: vLLM and torch abort if they may not end in order


if __name__ == "__main__":
    main()
