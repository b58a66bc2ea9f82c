"""Benchmark of the vllm engine alone: ``python -m benchmarks.vllm_engine`` prints one JSON object.

It measures CPU time per request, throughput, latency, and switch pauses. In each request the present screenshot is new
and the previous one is known. By default the untrained tiny policy answers ``--tokens`` tokens.
"""

import argparse
import asyncio
import hashlib
import io
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from PIL import Image, ImageDraw

from dart_streams.clock import now_ms
from dart_streams.config import Config, SwitchMode, parse
from dart_streams.telemetry import setup
from topics.action_requests import ActionRequest
from topics.values import BlobRef, MessagePart, Sampling
from topics.weights import WeightVersion
from workers.rollout import vllm_settings
from workers.rollout.engine import Engine

STEPS = 4
"""Requests of a synthetic episode."""


class Screens:
    """Synthetic screenshots by sha256."""

    def __init__(self, width: int, height: int) -> None:
        self.size = (width, height)
        self.blobs: dict[str, bytes] = {}

    def draw(self, seed: int) -> BlobRef:
        """Draw one screenshot."""
        draw = random.Random(seed)
        image = Image.new("RGB", self.size, "white")
        canvas = ImageDraw.Draw(image)
        for _ in range(6):
            x, y = draw.randrange(self.size[0] - 30), draw.randrange(self.size[1] - 20)
            canvas.rectangle((x, y, x + 30, y + 20), fill=tuple(draw.randbytes(3)), outline="black")
        stream = io.BytesIO()
        image.save(stream, "PNG")
        data = stream.getvalue()
        ref = BlobRef(sha256=hashlib.sha256(data).hexdigest(), size=len(data), width=self.size[0], height=self.size[1])
        self.blobs[ref.sha256] = data
        return ref

    async def read(self, ref: BlobRef) -> bytes:
        """Return a screenshot's bytes."""
        return self.blobs[ref.sha256]


def episode_requests(screens: Screens, seed: int, images: int, tokens: int) -> Iterator[ActionRequest]:
    """Yield the requests of a synthetic episode."""
    shown: list[BlobRef] = []
    for step in range(STEPS):
        shown = [*shown, screens.draw(seed * STEPS + step)][-images:]
        turns = [MessagePart(role="user", text=f"Click on the button {seed % 30}")]
        turns += [MessagePart(role="user", image=ref) for ref in shown]
        yield ActionRequest(
            request_id=f"{seed}-{step}",
            trajectory_id=str(seed),
            step=step,
            turns=turns,
            sampling=Sampling(max_tokens=tokens),
            reply_partition=0,
            deadline_ms=now_ms() + 60_000,
        )


async def measure(arguments: argparse.Namespace) -> dict:
    """Run the measurement; return its metrics."""
    os.environ.update(vllm_settings.engine_environment(os.environ))
    from workers.rollout.vllm_engine import VllmEngine

    with tempfile.TemporaryDirectory(prefix="rollout-bench-") as scratch:
        model, first = prepare_policy(Path(scratch), arguments.model)
        screens = Screens(arguments.width, arguments.height)
        engine = VllmEngine(engine_config(model, scratch, arguments), screens.read)
        started = time.perf_counter()
        await engine.start(first)
        report: dict = {"start_s": round(time.perf_counter() - started, 1), "loads": []}
        try:
            for number, in_flight in enumerate(arguments.in_flight):
                report["loads"].append(await measure_load(engine, screens, arguments, in_flight, number))
            numbers = itertools.count(1)
            report["switch_ms"] = {}
            for engine.mode in get_args(SwitchMode):
                report["switch_ms"][engine.mode] = await measure_switches(engine, screens, arguments, first, numbers)
        finally:
            await engine.stop()
        return report


async def measure_load(
    engine: Engine, screens: Screens, arguments: argparse.Namespace, in_flight: int, number: int
) -> dict:
    """Keep ``in_flight`` episodes running; return the cost of a request."""
    episodes = max(in_flight, arguments.requests // STEPS if in_flight > 1 else 10)
    prepared = [
        list(episode_requests(screens, number * 10_000 + seed, arguments.images, arguments.tokens))
        for seed in range(episodes)
    ]
    waiting = iter(prepared)
    took_ms: list[float] = []
    made = 0

    async def slot() -> None:
        nonlocal made
        for requests in waiting:
            for request in requests:
                started = time.perf_counter()
                generation = await engine.generate(request)
                made += len(generation.tokens)
                took_ms.append((time.perf_counter() - started) * 1000)

    cpu, started = time.process_time(), time.perf_counter()
    await asyncio.gather(*(slot() for _ in range(in_flight)))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - started
    return {
        "in_flight": in_flight,
        "requests": len(took_ms),
        "core_ms": round(cpu * 1000 / len(took_ms), 2),
        "requests_s": round(len(took_ms) / wall, 1),
        "p50_ms": round(statistics.median(took_ms), 1),
        "p95_ms": round(statistics.quantiles(took_ms, n=20)[-1], 1),
        "tokens": round(made / len(took_ms), 2),
    }


async def measure_switches(
    engine: Engine,
    screens: Screens,
    arguments: argparse.Namespace,
    first: WeightVersion,
    numbers: Iterator[int],
) -> dict:
    """Switch weights under load; return pauses (ms) and effects on requests."""
    spans: list[int] = []
    took_ms: list[float] = []
    made = 0
    done = asyncio.Event()

    async def slot(seed: int) -> None:
        nonlocal made
        while not done.is_set():
            for request in episode_requests(screens, 1_000_000 + seed, arguments.images, arguments.tokens):
                asked = time.perf_counter()
                generation = await engine.generate(request)
                took_ms.append((time.perf_counter() - asked) * 1000)
                spans.append(len(generation.versions))
                made += len(generation.tokens)

    slots = [asyncio.create_task(slot(seed)) for seed in range(8)]
    pauses = []
    started = time.perf_counter()
    for version in itertools.islice(numbers, arguments.switches):
        await asyncio.sleep(0.3)
        pauses.append(await engine.load(renumbered_version(first, version)))
    wall = time.perf_counter() - started
    done.set()
    await asyncio.gather(*slots)
    return {
        "p50": round(statistics.median(pauses), 1),
        "max": round(max(pauses), 1),
        "switches": len(pauses),
        "requests": len(spans),
        "requests_p50_ms": round(statistics.median(took_ms), 1),
        "requests_max_ms": round(max(took_ms), 1),
        "tokens_s": round(made / wall, 1),
        "of_two_versions": sum(count > 1 for count in spans),
    }


def renumbered_version(first: WeightVersion, version: int) -> WeightVersion:
    """Return the same weights under another number."""
    return WeightVersion(
        model_id="bench",
        version=version,
        uri=first.uri,
        sha256=first.sha256,
        train_step=version,
        epoch=1,
        groups_consumed=0,
    )


def prepare_policy(scratch: Path, model: Path | None) -> tuple[Path, WeightVersion]:
    """Return the model directory (default: an untrained tiny policy) and its version 0."""
    from dart_streams.policy import tiny, weights

    folder = model or scratch / "tiny"
    if model is None:
        tiny.build(folder)
    published = scratch / "version-0"
    digest = weights.save(weights.model_state(folder), str(published))
    version = WeightVersion(
        model_id="bench", version=0, uri=str(published), sha256=digest, train_step=0, epoch=1, groups_consumed=0
    )
    return folder, version


def engine_config(model: Path, scratch: str, arguments: argparse.Namespace) -> Config:
    """Return the configuration of the measured engine."""
    return parse(
        {
            "policy": {"path": str(model), "max_images": arguments.images},
            "rollout": {"max_in_flight": max(8, *arguments.in_flight)},
            "trainer": {"weights_uri": scratch},
        }
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a Hugging Face directory")
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 8, 16, 32])
    parser.add_argument("--requests", type=int, default=320, help="how many for each of --in-flight above 1")
    parser.add_argument("--tokens", type=int, default=5)
    parser.add_argument("--images", type=int, default=2)
    parser.add_argument("--width", type=int, default=160)
    parser.add_argument("--height", type=int, default=210)
    parser.add_argument("--switches", type=int, default=10)
    setup.start_logs("bench")
    json.dump(asyncio.run(measure(parser.parse_args())), sys.stdout, indent=2)
    sys.stdout.write("\n")
    sys.stdout.flush()
    os._exit(0)  # as the worker does: vLLM and torch abort if they may not end in order


if __name__ == "__main__":
    main()
