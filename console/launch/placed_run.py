"""A run's processes with their GPUs, before anything starts: placed, listed, and shown by ``run --dry-run``."""

import os
import shlex
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

import msgspec

from console.launch import processes
from console.launch.processes import BOOTSTRAP_FILE, ProcessSet, Programs
from console.launch.supervisor import ProcessSpec
from console.runs.run_folder import RunFolder, without_nulls
from console.sizing import gpu_devices
from console.sizing.gpu_devices import DEFAULT_GIB, VISIBLE, Gpus
from console.sizing.model_files import ModelShape, read_shape, refuse_sharding
from console.sizing.placement import PROCESSES, WORKERS, Placement, has_trainer, place_processes
from dart_streams.config import Config
from dart_streams.config.tables import drop_defaults
from dart_streams.errors import UserError
from dart_streams.policy import recipe

ALL_SET = frozenset({WORKERS, PROCESSES})
"""The keys of a recorded configuration, which sets all."""
UNNAMED = "RUN"
"""Stands for the id of a run that is not named."""


class PlacedProcess(msgspec.Struct, frozen=True):
    """A process of a run: its node and GPUs, the memory that it needs of each in GiB, and what is executed."""

    process: str
    node: int
    gpus: tuple[str, ...]
    needed_gib: float | None
    gpu_gib: float | None
    command: tuple[str, ...]
    environment: dict[str, str]

    def memory_text(self) -> str:
        """Return the memory needed of the memory there."""
        if not self.gpus:
            return ""
        there = f"{self.gpu_gib:.1f}" if self.gpu_gib else "unknown"
        return f"{self.needed_gib:.1f} of {there} GiB" if self.needed_gib else f"unknown of {there} GiB"


class RunPlan(msgspec.Struct, frozen=True):
    """What a run would start: its keys that differ from the defaults, its processes, and what to know about them."""

    configuration: dict[str, Any]
    processes: tuple[PlacedProcess, ...]
    notes: tuple[str, ...]


def place_run(config: Config, keys: Container[str], gpus: Gpus) -> tuple[Config, Placement]:
    """Return a configuration with the numbers of processes that follow from a node's GPUs, and the placement."""
    model, note = read_model(config) if gpus.devices else (None, "")
    placed, placement = place_processes(config, keys, gpus, model)
    if note:
        placement = msgspec.structs.replace(placement, notes=(*placement.notes, note))
    return placed, placement


def find_gpus(config: Config, simulated_gib: float | None = None, count: int | None = None) -> Gpus:
    """Return a node's GPUs: this machine's, or with ``simulated_gib`` those that ``hardware.gpus`` or ``count`` says.

    Raises ConfigError for GPUs that are neither there nor simulated.
    """
    if count is not None:
        return gpu_devices.simulate_gpus(count, simulated_gib or DEFAULT_GIB)
    if config.hardware.gpus == 0:
        return Gpus()
    there = gpu_devices.read_gpus(os.environ)
    return gpu_devices.wanted_gpus(config.hardware.gpus, there, simulated_gib=simulated_gib)


def read_model(config: Config) -> tuple[ModelShape | None, str]:
    """Return the sizes of the policy's model, or None with the reason why they are not known.

    Raises UserError if the ranks of a rollout worker cannot share its heads.
    """
    if not config.policy.path or not (processes.needs_model(config) or has_trainer(config)):
        return None, ""
    try:
        folder = recipe.named_policy(config)
        shape = read_shape(folder)
    except UserError as error:
        return None, f"memory is not known, so GPUs are halved where no key says otherwise: {error}"
    refuse_sharding(folder, config.rollout.vllm.tensor_parallel)
    return shape, ""


def list_placed(sets: list[ProcessSet], placement: Placement) -> tuple[PlacedProcess, ...]:
    """Return the processes of each node; these are the specifications that a supervisor starts."""
    needs = {"rollout": placement.rollout_gib, "trainer": placement.trainer_gib}
    return tuple(
        placed_process(spec, node, needs.get(role), placement.gpu_gib)
        for node, each in enumerate(sets)
        for role in each.__struct_fields__
        for spec in getattr(each, role)
    )


def placed_process(spec: ProcessSpec, node: int, needed_gib: float | None, gpu_gib: float) -> PlacedProcess:
    """Return a row of the placement."""
    gpus = tuple(name for name in spec.environment.get(VISIBLE, "").split(",") if name)
    needed = round(needed_gib, 1) if needed_gib and gpus else None
    there = round(gpu_gib, 1) if gpu_gib and gpus else None
    return PlacedProcess(spec.name, node, gpus, needed, there, spec.command, spec.environment)


def plan_run(config: Config, placement: Placement, folder: RunFolder) -> RunPlan:
    """Return what a run in ``folder`` starts on each node, without a look at programs or services."""
    found, file = processes.find_programs(), folder.config_file
    sets = [processes.list_processes(config, file, found, placement, node) for node in range(placement.nodes)]
    first = policy_rows(config, folder.path, found, placement)
    tables, defaults = (without_nulls(msgspec.to_builtins(one)) for one in (folder.resolved(config), Config()))
    return RunPlan(drop_defaults(tables, defaults), (*first, *list_placed(sets, placement)), placement.notes)


def policy_rows(config: Config, folder: Path, found: Programs, placement: Placement) -> tuple[PlacedProcess, ...]:
    """Return the processes that build the tiny policy before the others start; none if it is there already."""
    if config.policy.path or not processes.needs_model(config) or is_built(config):
        return ()
    specs = processes.policy_processes(config, folder / BOOTSTRAP_FILE, found, placement)
    return tuple(placed_process(spec, 0, None, placement.gpu_gib) for spec in specs)


def is_built(config: Config) -> bool:
    """Return whether the tiny policy of a configuration is in its state folder."""
    try:
        recipe.model_folder(config)
    except UserError:
        return False
    return True


def placement_lines(rows: tuple[PlacedProcess, ...], placement: Placement) -> Iterator[str]:
    """Yield what a run says about its GPUs before anything starts; nothing without GPUs on one node."""
    for row in rows:
        if row.gpus and not row.node:
            yield f"{row.process}: GPU {', '.join(row.gpus)} ({row.memory_text()})"
    for row in rows:
        if row.node:
            yield f"on node {row.node} start {row.process}: {command_text(row)}"
    yield from placement.notes


def command_text(row: PlacedProcess) -> str:
    """Return a process's command for a shell, with its variables."""
    assigned = [f"{name}={shlex.quote(value)}" for name, value in row.environment.items()]
    return " ".join([*assigned, shlex.join(row.command)])
