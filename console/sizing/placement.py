"""Placement of a deployment's processes on the GPUs of its nodes: who has which, and the sizes that follow. Pure."""

from collections.abc import Container

import msgspec

from console.sizing.gpu_devices import VISIBLE, Gpus
from console.sizing.gpu_memory import GIB, MemoryEstimate, total_bytes
from console.sizing.model_files import ModelShape
from dart_streams.config import Config
from dart_streams.config.files import with_partitions
from dart_streams.errors import ConfigError
from dart_streams.policy.staged_weights import UTILIZATION

WORKERS, PROCESSES = "rollout.workers", "trainer.processes"
ROLLOUT_GPUS, TRAINER_GPUS = "hardware.rollout_gpus", "hardware.trainer_gpus"
TENSOR_PARALLEL = "rollout.vllm.tensor_parallel"
ESTIMATE_ERROR = 0.1
"""Error of the memory estimates (docs/how-to/ui-tars.md): counts that the file sets are refused beyond it."""


class Placement(msgspec.Struct, frozen=True):
    """The devices of each process.

    ``workers`` has those of each rollout worker, ``per_node`` of them on a node; ``trainer`` those that the ranks of a
    node share. ``rollout_gib`` and ``trainer_gib`` are the memory needed on each GPU, None if unknown; ``gpu_gib`` is a
    GPU's memory, 0 if unknown.
    """

    nodes: int = 1
    workers: tuple[tuple[str, ...], ...] = ()
    per_node: int = 0
    trainer: tuple[str, ...] = ()
    rollout_gib: float | None = None
    trainer_gib: float | None = None
    gpu_gib: float = 0.0
    placed: bool = False
    notes: tuple[str, ...] = ()

    def environment(self, devices: tuple[str, ...] = ()) -> dict[str, str]:
        """Return the variables of a process with these devices; nothing where no GPU is placed."""
        return {VISIBLE: ",".join(devices)} if self.placed else {}

    def of_worker(self, number: int) -> dict[str, str]:
        """Return the variables of a rollout worker."""
        return self.environment(self.workers[number] if number < len(self.workers) else ())

    def workers_of(self, node: int, count: int) -> range:
        """Return the numbers of the ``count`` rollout workers that run on a node."""
        per_node = self.per_node or count
        return range(min(count, node * per_node), min(count, (node + 1) * per_node))


class GpuCounts(msgspec.Struct, frozen=True):
    """GPUs of a node for rollout and trainer; ``shared``: both on its only GPU. ``tensor`` are those of a worker."""

    rollout: int
    trainer: int
    tensor: int = 1
    shared: bool = False


class Wanted(msgspec.Struct, frozen=True):
    """What a file says about the GPUs of a node: a count, and the key that sets it; None: nothing."""

    count: int | None = None
    key: str = ""


def place_processes(
    config: Config, keys: Container[str], gpus: Gpus, model: ModelShape | None = None
) -> tuple[Config, Placement]:
    """Return the configuration with its numbers of processes, and their devices; ``gpus`` are those of a node.

    ``keys`` are those that the file sets. Raises ConfigError for keys that contradict each other or the GPUs, and for
    memory that does not do.
    """
    nodes = trainer_nodes(config)
    if not gpus.devices:
        refuse_missing(config)
        return config, Placement(nodes=nodes)
    estimate = MemoryEstimate(model, config) if model and gpus.gib else None
    counts = count_gpus(config, keys, gpus, estimate)
    sized = with_counts(config, keys, counts, nodes)
    estimate = MemoryEstimate(model, sized) if model and gpus.gib else None
    notes = memory_notes(sized, counts, gpus, estimate) if estimate else []
    if idle := gpus.devices[counts.rollout + counts.trainer :]:
        notes.append(f"GPUs that no process has: {', '.join(idle)}")
    return sized, assign(sized, counts, gpus, estimate, notes)


def refuse_missing(config: Config) -> None:
    """Raise ConfigError for GPUs that are asked for where none are placed."""
    asked = {ROLLOUT_GPUS: config.hardware.rollout_gpus, TRAINER_GPUS: config.hardware.trainer_gpus}
    for key, count in asked.items():
        if count:
            raise ConfigError(f"{key} = {count}, and hardware.gpus has none to place: leave {key} out, or set both")


def trainer_nodes(config: Config) -> int:
    """Return the number of nodes, one without a trainer."""
    return config.trainer.nodes if has_trainer(config) else 1


def has_trainer(config: Config) -> bool:
    """Return whether a run has a trainer: to train, or to publish the weights that are evaluated."""
    return config.run.trains or not config.rollout.fixed_weights


def tensor_parallel(config: Config) -> int:
    """Return the GPUs of a rollout worker."""
    return config.rollout.vllm.tensor_parallel


def wanted_rollout(config: Config, keys: Container[str]) -> Wanted:
    """Return the GPUs of a node for rollout; only the engine ``vllm`` uses them, an endpoint's are left free."""
    nodes, tensor, hardware = trainer_nodes(config), tensor_parallel(config), config.hardware
    if config.rollout.engine != "vllm":
        return Wanted(hardware.rollout_gpus, ROLLOUT_GPUS)
    if hardware.rollout_gpus % tensor:
        raise ConfigError(
            f"{ROLLOUT_GPUS} = {hardware.rollout_gpus} is no multiple of {TENSOR_PARALLEL} = {tensor}: correct one"
        )
    of_file = Wanted(-(-config.rollout.workers // nodes) * tensor, WORKERS) if WORKERS in keys else Wanted()
    return agree_on(Wanted(hardware.rollout_gpus or None, ROLLOUT_GPUS), of_file, config.rollout.workers)


def wanted_trainer(config: Config, keys: Container[str]) -> Wanted:
    """Return the GPUs of a node for the trainer, one a rank."""
    if not has_trainer(config):
        return Wanted(0, "run.minutes")
    of_file = Wanted(config.trainer.processes, PROCESSES) if PROCESSES in keys else Wanted()
    return agree_on(Wanted(config.hardware.trainer_gpus or None, TRAINER_GPUS), of_file, config.trainer.processes)


def agree_on(by_gpus: Wanted, by_processes: Wanted, value: int) -> Wanted:
    """Return what two keys say together; raise ConfigError if they differ."""
    if by_gpus.count is None:
        return by_processes
    if by_processes.count is not None and by_processes.count != by_gpus.count:
        raise ConfigError(
            f"{by_gpus.key} = {by_gpus.count} contradicts {by_processes.key} = {value}, which takes "
            f"{by_processes.count} GPUs of a machine: leave one of them out"
        )
    return by_gpus


def count_gpus(config: Config, keys: Container[str], gpus: Gpus, estimate: MemoryEstimate | None) -> GpuCounts:
    """Return the GPUs of rollout and trainer; raise ConfigError where these do not do."""
    count, tensor = len(gpus.devices), tensor_parallel(config)
    rollout, trainer = wanted_rollout(config, keys), wanted_trainer(config, keys)
    if count == 1 and tensor == 1 and {rollout.count, trainer.count} <= {None, 1}:
        return GpuCounts(1, 1, shared=True)
    if rollout.count is None and trainer.count is None:
        return halve_gpus(count, tensor) if estimate is None else split_by_memory(estimate, gpus, tensor)
    if rollout.count is None:
        left = (count - (trainer.count or 0)) // tensor * tensor
        refuse_none_left(left, "rollout workers", count, trainer)
        return GpuCounts(left, trainer.count or 0, tensor)
    if trainer.count is None:
        refuse_none_left(count - rollout.count, "the trainer", count, rollout)
        return GpuCounts(rollout.count, count - rollout.count, tensor)
    if rollout.count + trainer.count > count:
        raise ConfigError(
            f"{rollout.key} and {trainer.key} take {rollout.count} + {trainer.count} GPUs of a machine, and it has "
            f"{count} (hardware.gpus): lower one of them, or leave both out"
        )
    return GpuCounts(rollout.count, trainer.count, tensor)


def refuse_none_left(left: int, role: str, count: int, other: Wanted) -> None:
    """Raise ConfigError if one role's GPUs leave none for the other."""
    if left < 1:
        raise ConfigError(
            f"{other.key} takes {other.count} of the {count} GPUs of a machine (hardware.gpus) and leaves too few for "
            f"{role}: lower it"
        )


def halve_gpus(count: int, tensor: int) -> GpuCounts:
    """Return half of the GPUs for each; rollout has the odd one, in whole workers."""
    rollout = max(1, (count - count // 2) // tensor) * tensor
    if rollout >= count:
        raise ConfigError(
            f"{TENSOR_PARALLEL} = {tensor} leaves no GPU for the trainer of the {count} of a machine (hardware.gpus): "
            "lower it"
        )
    return GpuCounts(rollout, count - rollout, tensor)


def split_by_memory(estimate: MemoryEstimate, gpus: Gpus, tensor: int) -> GpuCounts:
    """Return the smallest trainer that fits, and the other GPUs in whole rollout workers."""
    count = len(gpus.devices)
    found = estimate.split(count, gpus.gib)
    if found is None or found.rollout < tensor:
        raise ConfigError(
            f"policy.path: rollout and trainer do not fit on {count} GPUs of {gpus.gib:.0f} GiB: "
            f"{estimate.advise(count, gpus.gib)}"
        )
    rollout = found.rollout // tensor * tensor
    return GpuCounts(rollout, count - rollout, tensor)


def with_counts(config: Config, keys: Container[str], counts: GpuCounts, nodes: int) -> Config:
    """Return a configuration with the numbers of processes that follow, where the file sets none."""
    replace, rollout, trainer = msgspec.structs.replace, config.rollout, config.trainer
    if rollout.engine == "vllm" and WORKERS not in keys:
        rollout = replace(rollout, workers=counts.rollout // counts.tensor * nodes)
    if has_trainer(config) and PROCESSES not in keys:
        trainer = replace(trainer, processes=counts.trainer)
    try:
        return with_partitions(replace(config, rollout=rollout, trainer=trainer))
    except ValueError as error:
        raise ConfigError(f"by hardware.gpus {WORKERS} = {rollout.workers}: {error}") from None


def memory_notes(config: Config, counts: GpuCounts, gpus: Gpus, estimate: MemoryEstimate) -> list[str]:
    """Return what is near the limit of a GPU; raise ConfigError for what is beyond the error of the estimate."""
    needs = {}
    if has_trainer(config):
        needs["the trainer"] = (trainer_gib(estimate, counts), gpus.gib)
    if config.rollout.engine == "vllm":
        needs["a rollout worker"] = (rollout_gib(estimate, gpus), UTILIZATION * gpus.gib)
    if counts.shared and len(needs) == 2:
        refuse_shared(estimate, needs["the trainer"][0], gpus)
    over = {who: need for who, need in needs.items() if need[0] > need[1]}
    for who, (need, room) in over.items():
        if need > (1 + ESTIMATE_ERROR) * room:
            raise ConfigError(
                f"policy.path: {who} needs {need:.1f} GiB of a GPU's {room:.1f} (`dart-streams doctor --model` has the "
                f"parts): {estimate.advise(len(gpus.devices), gpus.gib)}"
            )
    return [f"{who} may not fit: {need:.1f} GiB of {room:.1f}, estimated" for who, (need, room) in over.items()]


def refuse_shared(estimate: MemoryEstimate, needed_gib: float, gpus: Gpus) -> None:
    """Raise ConfigError if a trainer does not fit beside vLLM, which takes its share of the only GPU."""
    left = (1 - UTILIZATION) * gpus.gib
    if needed_gib > left:
        raise ConfigError(
            f"policy.path: rollout and trainer do not both fit on one GPU of {gpus.gib:.0f} GiB: the trainer needs "
            f"{needed_gib:.1f}, and vLLM leaves {left:.1f}: {estimate.advise(1, gpus.gib)}"
        )


def trainer_gib(estimate: MemoryEstimate, counts: GpuCounts) -> float:
    """Return the peak of a rank, in GiB: at its start, in a step, or while it publishes.

    The ranks of a node share the state; if each node has one, all nodes do.
    """
    ranks = counts.trainer if counts.trainer > 1 else estimate.config.trainer.nodes
    peaks = estimate.loading(ranks), estimate.publishing(ranks), total_bytes(estimate.trainer_step(ranks))
    return max(peaks) / GIB


def rollout_gib(estimate: MemoryEstimate, gpus: Gpus) -> float:
    """Return what an engine needs of a GPU with the cache of one request of full length, in GiB."""
    engine = estimate.engine(estimate.second_set(gpus.gib) == "device")
    return (total_bytes(engine) + estimate.sequence * estimate.cache_token) / GIB


def assign(
    config: Config, counts: GpuCounts, gpus: Gpus, estimate: MemoryEstimate | None, notes: list[str]
) -> Placement:
    """Return the devices of each process: rollout workers have the first of a node, the trainer those behind."""
    nodes, tensor, devices = trainer_nodes(config), counts.tensor, gpus.devices
    vllm = config.rollout.engine == "vllm"
    count = config.rollout.workers if vllm else 0
    per_node = -(-count // nodes)
    workers = tuple(devices[at * tensor : (at + 1) * tensor] for at in (number % per_node for number in range(count)))
    first = 0 if counts.shared else counts.rollout
    return Placement(
        nodes=nodes,
        workers=workers,
        per_node=per_node,
        trainer=devices[first : first + counts.trainer] if has_trainer(config) else (),
        rollout_gib=rollout_gib(estimate, gpus) if estimate and vllm else None,
        trainer_gib=trainer_gib(estimate, counts) if estimate and has_trainer(config) else None,
        gpu_gib=gpus.gib,
        placed=True,
        notes=tuple(notes),
    )
