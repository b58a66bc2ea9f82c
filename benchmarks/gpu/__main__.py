"""Measure the trainer on this machine's GPU: ``python -m benchmarks.gpu [PLAN ...]`` prints JSON, a line a figure.

Each plan has a process of its own. The tiny plans run on a CPU.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import structlog
import torch

from benchmarks.gpu.plans import PLANS
from dart_streams.deadline import Deadline

VERSIONS = ("torch", "transformers", "peft", "safetensors")


def main() -> None:
    """Measure the named plans, or those of real sizes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("plans", nargs="*", choices=PLANS, default=["7b-lora", "3b-full"], metavar="PLAN")
    parser.add_argument("--seconds", type=float, default=240.0, help="of steps a plan; later ones are left out")
    parser.add_argument("--folder", type=Path, help="where versions are written (default: a temporary folder)")
    parser.add_argument("--here", action="store_true", help="measure one plan in this process")
    arguments = parser.parse_args()
    if arguments.here:
        measure_plan(arguments.plans[0], arguments.seconds, arguments.folder)
        return
    show(describe_machine())
    failed = [name for name in arguments.plans if run_plan(name, arguments.seconds, arguments.folder)]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


def run_plan(name: str, seconds: float, folder: Path | None) -> int:
    """Measure a plan in a process; return its exit code."""
    options = [f"--seconds={seconds}", *([f"--folder={folder}"] if folder else [])]
    command = [sys.executable, "-m", "benchmarks.gpu", name, "--here", *options]
    # Segments of the allocator grow, so that rows of different lengths leave no holes.
    allocator = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    return subprocess.run(command, env={**os.environ, **allocator}, check=False).returncode


def measure_plan(name: str, seconds: float, folder: Path | None) -> None:
    """Print the figures of a plan."""
    from benchmarks.gpu.trainer import TrainerBenchmark
    from trainer.ranks import join_job

    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    with tempfile.TemporaryDirectory(dir=folder, prefix="gpu-bench-") as scratch, join_job() as ranks:
        for figures in TrainerBenchmark(PLANS[name], Path(scratch), ranks).measure(Deadline(seconds)):
            show({"plan": name, **figures})


def show(figures: dict[str, Any]) -> None:
    """Print a line at once, so that an interrupted run keeps what it has."""
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()


def describe_machine() -> dict[str, Any]:
    """Return the device, its memory, the versions of the libraries, and the date."""
    found: dict[str, Any] = {"what": "machine", "date": time.strftime("%Y-%m-%d"), "python": platform.python_version()}
    found |= {name: metadata.version(name) for name in VERSIONS}
    if torch.cuda.is_available():
        device = torch.cuda.get_device_properties(0)
        found |= {"device": device.name, "gib": round(device.total_memory / 2**30, 1), "cuda": torch.version.cuda}
    return found


if __name__ == "__main__":
    main()
