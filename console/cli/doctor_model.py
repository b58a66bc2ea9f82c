"""``dart-streams doctor --model``: the fit of a model on GPUs, and advice if it does not fit."""

from pathlib import Path

import msgspec
import typer

from console.cli.output import show, show_json
from console.sizing.gpu_memory import GIB, Item, MemoryEstimate, total_bytes
from console.sizing.model_files import read_shape, refuse_sharding
from dart_streams.config import Config
from dart_streams.episodes import context
from dart_streams.policy.staged_weights import SecondSetPlace


class Allocation(msgspec.Struct, frozen=True):
    """An allocation of a process, in GiB on each of its GPUs, with its formula."""

    process: str
    what: str
    gib: float
    counted: str


class GpuFit(msgspec.Struct, frozen=True):
    """The GPUs of each part if the model fits, else advice.

    ``too_long`` is the reason why the longest prompt exceeds the model's context, or empty. ``second_set`` is the place
    of the second set of weights. A rollout worker has ``tensor_parallel`` GPUs; ``cache_blocks`` and ``requests`` (of
    full length) are a worker's, ``requests_with_second_set`` those with a second set on the device.
    """

    fits: bool
    gpus: int
    gpu_gib: float
    rollout_gpus: int
    trainer_gpus: int
    sequence_tokens: int
    second_set: SecondSetPlace
    cache_blocks: int
    requests: int
    requests_with_second_set: int
    too_long: str
    advice: list[str]
    allocations: list[Allocation]
    tensor_parallel: int = 1

    @property
    def worker(self) -> str:
        """A rollout worker, in words."""
        return f"A rollout worker of {self.tensor_parallel} GPUs" if self.tensor_parallel > 1 else "A rollout GPU"


def fit(folder: Path, config: Config, gpus: int, gpu_gib: float) -> GpuFit:
    """Return whether a model fits; raise UserError if its size is unknown, or its heads do not divide among ranks."""
    ranks = config.rollout.vllm.tensor_parallel
    refuse_sharding(folder, ranks)
    estimate = MemoryEstimate(read_shape(folder), config)
    found = estimate.split(gpus, gpu_gib)
    shown = found.trainer if found else max(1, gpus - ranks)
    place = estimate.second_set(gpu_gib)
    loading = Item("at its start", estimate.loading(shown), "a whole model in float32, before it is sharded")
    publishing = Item("while a version is made", estimate.publishing(shown), "what is rounded or merged, once more")
    rows = [
        *rows_of("rollout", list(estimate.engine(place == "device"))),
        *rows_of(f"trainer on {shown}", list(estimate.trainer_step(shown))),
        *rows_of(f"trainer on {shown}", [loading, publishing], summed=False),
        *rows_of("rollout, main memory", list(estimate.rollout_host(gpu_gib))),
        *rows_of("trainer's rank 0, main memory", list(estimate.trainer_host(shown))),
    ]
    return GpuFit(
        fits=found is not None,
        gpus=gpus,
        gpu_gib=gpu_gib,
        rollout_gpus=found.rollout if found else 0,
        trainer_gpus=found.trainer if found else 0,
        sequence_tokens=estimate.sequence,
        second_set=place,
        cache_blocks=estimate.cache_blocks(gpu_gib, place == "device"),
        requests=estimate.requests(gpu_gib, place == "device"),
        requests_with_second_set=estimate.requests(gpu_gib, second_set=True),
        too_long=context.context_refusal(folder, config, context.most_steps(config)),
        advice=[] if found else [estimate.advise(gpus, gpu_gib)],
        allocations=rows,
        tensor_parallel=ranks,
    )


def rows_of(process: str, items: list[Item], *, summed: bool = True) -> list[Allocation]:
    """Return the rows of a process's allocations, and of their sum."""
    whole = [Item("sum", total_bytes(items), "")] if items and summed else []
    return [Allocation(process, item.what, round(item.size / GIB, 2), item.formula) for item in [*items, *whole]]


def report(folder: Path, config: Config, gpus: int, gpu_gib: float, *, as_json: bool) -> None:
    """Print the fit; exit with 1 if the model or its prompts do not fit."""
    found = fit(folder, config, gpus, gpu_gib)
    if as_json:
        show_json(found)
    else:
        show(found.allocations, as_json=False, title=f"{folder} on each GPU, in GiB of {gpu_gib:g}")
        typer.echo(
            f"{found.worker} has room for {found.cache_blocks:,} cache blocks: {found.requests} requests of "
            f"{found.sequence_tokens:,} tokens{second_set_text(found)}"
        )
        typer.echo(verdict_text(found))
        if found.too_long:
            typer.echo(f"Its context is too small: {found.too_long}.")
    if not found.fits or found.too_long:
        raise typer.Exit(1)


def second_set_text(found: GpuFit) -> str:
    """Return the part of the answer about the second set of weights."""
    if found.second_set == "device":
        return " beside the second set of weights"
    held = " (the second set is in main memory)" if found.second_set == "host" else ""
    return f", {found.requests_with_second_set} beside a second set of weights on the device{held}"


def verdict_text(found: GpuFit) -> str:
    """Return the answer in words."""
    if not found.fits:
        return f"It does not fit on {found.gpus} GPUs: {'; '.join(found.advice)}."
    workers = found.rollout_gpus // found.tensor_parallel
    return (
        f"It fits: {found.rollout_gpus} GPUs for rollout (rollout.workers = {workers}), "
        f"{found.trainer_gpus} for the trainer (trainer.processes = {found.trainer_gpus})."
    )
