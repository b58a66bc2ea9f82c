"""The GPUs that this process may use, by nvidia-smi and ``CUDA_VISIBLE_DEVICES``. Without torch."""

import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from dart_streams.errors import ConfigError, UserError

VISIBLE = "CUDA_VISIBLE_DEVICES"
QUERY = ("nvidia-smi", "--query-gpu=index,uuid,memory.total,name", "--format=csv,noheader,nounits")
QUERY_TIMEOUT_S = 30.0
"""The first query after a boot loads the driver."""
DEVICE_FILES = Path("/dev")
MIB_A_GIB = 1024
DEFAULT_GIB = 80.0
"""Memory of a simulated GPU, as of ``doctor --model``."""


class Gpus(msgspec.Struct, frozen=True):
    """GPUs of a node as ``CUDA_VISIBLE_DEVICES`` names them; ``gib`` is the memory of the smallest, 0 if unknown."""

    devices: tuple[str, ...] = ()
    gib: float = 0.0

    def first(self, count: int) -> "Gpus":
        """Return the first ``count`` GPUs."""
        return Gpus(self.devices[:count], self.gib)


class GpuDevice(msgspec.Struct, frozen=True):
    """A GPU of this machine, by nvidia-smi."""

    index: str
    uuid: str
    gib: float
    name: str = ""

    def is_named(self, name: str) -> bool:
        """Return whether an entry of ``CUDA_VISIBLE_DEVICES`` names this GPU: its index, or how its UUID begins."""
        return name == self.index or (len(name) > len("GPU-") and self.uuid.startswith(name))


def read_gpus(environ: Mapping[str, str]) -> Gpus:
    """Return the GPUs of this machine that ``CUDA_VISIBLE_DEVICES`` leaves; none without a driver."""
    return visible_gpus(list_devices(), environ.get(VISIBLE))


def list_devices() -> list[GpuDevice]:
    """Return this machine's GPUs; without nvidia-smi those of the device files, of unknown memory."""
    try:
        done = subprocess.run(QUERY, capture_output=True, text=True, timeout=QUERY_TIMEOUT_S, check=False)
    except OSError:
        return [GpuDevice(index, "", 0.0) for index in device_files(DEVICE_FILES)]
    except subprocess.TimeoutExpired:
        raise UserError(
            f"nvidia-smi did not answer within {QUERY_TIMEOUT_S:g} s: repair the driver, or set hardware.gpus = 0"
        ) from None
    if done.returncode:
        return []
    return parse_devices(done.stdout)


def parse_devices(text: str) -> list[GpuDevice]:
    """Read nvidia-smi's lines of index, UUID, memory in MiB and name; a memory that is no number is unknown."""
    rows = [[cell.strip() for cell in line.split(",", 3)] for line in text.splitlines() if line.count(",") >= 2]
    return [
        GpuDevice(index, uuid, int(mib) / MIB_A_GIB if mib.isdecimal() else 0.0, *name)
        for index, uuid, mib, *name in rows
    ]


def device_files(folder: Path) -> list[str]:
    """Return the indices of the device files ``nvidia0``, ``nvidia1`` and so on."""
    found = (path.name.removeprefix("nvidia") for path in folder.glob("nvidia[0-9]*"))
    return sorted((name for name in found if name.isdecimal()), key=int)


def visible_gpus(devices: Iterable[GpuDevice], visible: str | None) -> Gpus:
    """Return the GPUs that ``visible`` leaves, in its order; as in CUDA the first unknown entry ends the list."""
    devices = list(devices)
    if visible is None:
        return smallest_of([(device.index, device.gib) for device in devices])
    chosen = []
    for name in (entry.strip() for entry in visible.split(",")):
        device = next((device for device in devices if name and device.is_named(name)), None)
        if device is None and not (devices and name.startswith("MIG-")):
            break
        chosen.append((name, device.gib if device else 0.0))
    return smallest_of(chosen)


def smallest_of(chosen: list[tuple[str, float]]) -> Gpus:
    """Return GPUs with the memory of the smallest."""
    return Gpus(tuple(name for name, _ in chosen), min((gib for _, gib in chosen), default=0.0))


def simulate_gpus(count: int, gib: float) -> Gpus:
    """Return GPUs that need not be there."""
    return Gpus(tuple(map(str, range(count))), gib)


def wanted_gpus(wanted: int | str, there: Gpus, *, simulated_gib: float | None = None) -> Gpus:
    """Return the GPUs that ``hardware.gpus`` asks for; missing ones are simulated with ``simulated_gib``, or refused.

    Raises ConfigError.
    """
    if isinstance(wanted, str):
        return there
    if wanted <= len(there.devices):
        return there.first(wanted)
    if simulated_gib is not None:
        return simulate_gpus(wanted, simulated_gib)
    raise ConfigError(
        f'hardware.gpus = {wanted}, and {len(there.devices)} are visible on this machine: set it to "auto", or '
        f"correct {VISIBLE}"
    )
