"""What rollout workers and the trainer keep weights in of a machine's main memory, from version to version. Pure."""

from collections.abc import Iterator

from dart_streams.config import Config
from dart_streams.console.sizing import gpu_memory
from dart_streams.console.sizing.gpu_memory import FLOAT32, Item
from dart_streams.console.sizing.model_files import ModelShape


def rollout(model: ModelShape, config: Config, gpu_gib: float) -> Iterator[Item]:
    """Yield the main memory that a rollout worker keeps weights in, from version to version."""
    publish, lora = config.trainer.publish, config.trainer.lora
    width = FLOAT32 if publish.dtype == "float32" else 2
    whole, formula = width * model.parameters, f"{width} B x {model.parameters / 1e9:.2f} G parameters"
    if config.trainer.publishes_parts:
        yield Item("weights that the next version is applied to", whole, formula)
    if lora.rank:
        yield Item("frozen weights beside the merged ones", whole, formula)
    if gpu_memory.place_of_second_set(model, config, gpu_gib) == "host":
        yield Item("second set of weights, pinned", gpu_memory.served_bytes(model), "copied to the GPU in the switch")


def trainer(model: ModelShape, config: Config) -> Iterator[Item]:
    """Yield the main memory that rank 0 of the trainer keeps weights in, from version to version."""
    width = FLOAT32 if config.trainer.publish.dtype == "float32" else 2
    if config.trainer.publishes_parts:
        what = "frozen weights" if config.trainer.lora.rank else "newest version, for the next delta"
        yield Item(what, width * model.parameters, f"{width} B x {model.parameters / 1e9:.2f} G parameters")
