"""A workaround for CPUs that announce AMX without supporting it, as on some virtual machines. Without torch.

There half-precision layers of oneDNN end the process with SIGILL. A cap on oneDNN's instruction set avoids that; a
child process probes the cap, once per boot.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import structlog

from dart_streams.disk_room import make_private
from dart_streams.errors import UserError

VARIABLE = "ONEDNN_MAX_CPU_ISA"
CAPS = ("", "AVX512_CORE_FP16", "AVX512_CORE_BF16", "AVX512_CORE")
"""Values of the variable, from no cap down; only the first uses AMX."""
PROBE = """
import torch
from torch.nn import Conv3d, Linear

for dtype in (torch.bfloat16, torch.float16):
    for layer, shape in ((Linear(256, 256), (64, 256)), (Conv3d(3, 32, 14, 14), (8, 3, 14, 28, 28))):
        layer.to(dtype)(torch.randn(shape, dtype=dtype)).float().sum().backward()
"""
TIMEOUT_S = 120.0
FILE = "cpu_features"
"""Caches the boot id and the cap."""

log = structlog.get_logger()


def limit_isa(dtype: str, state_dir: Path) -> None:
    """Cap the instruction set of this process and its children, unless ``dtype`` is float32.

    Call it before the first layer runs, when oneDNN reads the variable. A value that is already set stays. Raises
    :class:`UserError` if layers end a process under every cap.
    """
    if dtype == "float32" or VARIABLE in os.environ:
        return
    if cap := needed_cap(state_dir):
        os.environ[VARIABLE] = cap
        log.warning("AMX of this CPU is not usable: oneDNN is capped", variable=VARIABLE, value=cap)


def needed_cap(state_dir: Path, python: str = sys.executable) -> str:
    """Return the cap that half-precision layers need on this machine: the cached one, or probed by ``python``."""
    if "amx_tile" not in cpu_flags():
        return ""
    file, boot_id = state_dir / FILE, Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    known, _, cap = file.read_text(encoding="utf-8").partition(" ") if file.is_file() else ("", "", "")
    if known != boot_id:
        cap = first_usable([python, "-c", PROBE])
        make_private(state_dir)
        file.write_text(f"{boot_id} {cap}", encoding="utf-8")
    return cap


def first_usable(probe: Sequence[str]) -> str:
    """Return the highest of ``CAPS`` under which no signal ends the command ``probe``; other failures say nothing."""
    for cap in CAPS:
        environment = {**os.environ, VARIABLE: cap} if cap else {k: v for k, v in os.environ.items() if k != VARIABLE}
        done = subprocess.run(probe, env=environment, capture_output=True, timeout=TIMEOUT_S, check=False)
        if done.returncode >= 0:
            return cap
    raise UserError(
        f"bfloat16 layers end a process on this CPU (signal {-done.returncode}), also with {VARIABLE}={CAPS[-1]}: "
        "set trainer.dtype to float32"
    )


def cpu_flags() -> frozenset[str]:
    """Return the CPU's announced features; empty where Linux does not list them."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return frozenset(next((line for line in lines if line.startswith("flags")), "").split())
