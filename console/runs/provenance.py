"""The provenance of a run: for each of its starts the command, the revision, versions and the machine. Values only."""

import msgspec


class MachineDescription(msgspec.Struct, frozen=True, kw_only=True):
    """The machine of a start, within the bounds of its container; ``gpus`` are names with memory."""

    cpu: str
    cores: int
    memory_gib: float
    gpus: tuple[str, ...] = ()


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """A start of a run. ``revision`` is empty without a checkout; ``libraries`` are versions by name."""

    at_ms: int
    command: str
    version: str
    revision: str
    python: str
    libraries: dict[str, str]
    machine: MachineDescription
