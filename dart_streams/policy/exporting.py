"""Export of a trained version as a Hugging Face directory for transformers and vLLM."""

import contextlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from transformers import AutoModelForImageTextToText
from transformers.utils import logging as transformers_logging

from dart_streams.bus import sync_clients
from dart_streams.config import Bus
from dart_streams.errors import UserError
from dart_streams.policy import weights
from dart_streams.policy.hub_models import HubModel
from dart_streams.policy.model_folder import refuse_missing
from dart_streams.policy.resident_weights import materialize_weights
from topics import weights as weights_topic
from topics.transitions import WeightState
from topics.weights import WeightVersion

WEIGHTS = (".cache", "*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", weights.PROBE)
"""Files of the base model that are not copied."""


def find(bus: Bus, model_id: str, number: int | None = None) -> WeightVersion:
    """Return version ``number`` of a model, by default the newest; raise :class:`UserError` if it is not published."""
    newest, state = None, WeightState(model_id=model_id)
    for event in sync_clients.read_events(bus, "policy-export", weights_topic.TOPIC):
        if state.admits(event) and number in (None, event.version):
            newest = event if newest is None or event.version >= newest.version else newest
        state = state.accept(event)
    if newest is None:
        what = "no version" if number is None else f"no version {number}"
        raise UserError(
            f"{what} of model {model_id!r} on {bus.prefix}{weights_topic.TOPIC.name}: is --config the run's?"
        )
    return newest


def export_adapter(model_dir: Path, version: WeightVersion, target: Path, base: HubModel | None = None) -> None:
    """Write the adapter ``version`` in peft's format, for the model in ``model_dir``, or by its id ``base`` on the hub.

    ``target`` appears complete or not at all. Raises :class:`UserError` if it exists, or the version is no adapter.
    """
    if version.kind != "adapter":
        raise UserError(
            f"version {version.version} of {version.model_id!r} is published whole, not as an adapter: leave --adapter "
            "out, or name a later version of a run with trainer.lora.rank above 0"
        )
    with new_directory(target) as (partial, cache):
        partial.mkdir()
        fetched = weights.fetch(version.parts[-1], cache)
        shutil.copyfile(fetched / weights.FILES["adapter"], partial / weights.FILES["adapter"])
        settings = json.loads((fetched / weights.ADAPTER_CONFIG).read_bytes())
        settings["base_model_name_or_path"] = base.repo if base else str(model_dir)
        settings["revision"] = base.revision if base else None
        (partial / weights.ADAPTER_CONFIG).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def export(model_dir: Path, version: WeightVersion, target: Path) -> None:
    """Write ``version`` of the model in ``model_dir`` to ``target``, which appears complete or not at all.

    Configuration, tokenizer, image processor, weight names and precision are those of ``model_dir``. Raises
    :class:`UserError` if ``target`` exists, or ``model_dir`` or the weights are missing.
    """
    with new_directory(target) as (partial, cache):
        write_directory(model_dir, partial, lambda model: weights.load(model, materialize_weights(version, cache)))


def write_directory(model_dir: Path, target: Path, fill: Callable[[torch.nn.Module], None]) -> None:
    """Write the model in ``model_dir``, with the weights that ``fill`` copies into it, to the new folder ``target``."""
    refuse_missing(model_dir)
    transformers_logging.disable_progress_bar()
    shutil.copytree(model_dir, target, ignore=shutil.ignore_patterns(*WEIGHTS))
    model = AutoModelForImageTextToText.from_pretrained(model_dir, dtype="auto")
    with torch.no_grad():
        fill(model)
    model.save_pretrained(target)


@contextlib.contextmanager
def new_directory(target: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the directory that becomes ``target``, and a cache; raise :class:`UserError` if ``target`` exists."""
    if target.exists():
        raise UserError(f"{target} exists already: name another directory, or remove it")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as scratch:
        yield Path(scratch) / "model", Path(scratch) / "cache"
        (Path(scratch) / "model").replace(target)
