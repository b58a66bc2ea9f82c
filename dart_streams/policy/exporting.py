"""A trained version as a Hugging Face directory of its own, which transformers and vLLM load."""

import json
import shutil
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForImageTextToText
from transformers.utils import logging as transformers_logging

from dart_streams.bus import sync_clients
from dart_streams.config import Bus
from dart_streams.errors import UserError
from dart_streams.policy import resident_weights, weights
from dart_streams.policy.rendering import refuse_missing
from topics import weights as weights_topic
from topics.transitions import WeightState
from topics.weights import WeightVersion

WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", weights.PROBE)
"""What of the model that training began with is not copied."""


def find(bus: Bus, model_id: str, number: int | None = None) -> WeightVersion:
    """Return the newest published version of a model, or that ``number``; raise :class:`UserError` without one."""
    found, state = None, WeightState(model_id=model_id)
    for event in sync_clients.read_events(bus, "policy-export", weights_topic.TOPIC):
        if state.admits(event) and number in (None, event.version):
            found = event if found is None or event.version >= found.version else found
        state = state.accept(event)
    if found is None:
        what = "no version" if number is None else f"no version {number}"
        raise UserError(
            f"{what} of model {model_id!r} on {bus.prefix}{weights_topic.TOPIC.name}: is --config the run's?"
        )
    return found


def export_adapter(model_dir: Path, version: WeightVersion, target: Path) -> None:
    """Write the adapter that ``version`` is as peft reads it, to be applied to the model in ``model_dir``.

    ``target`` appears complete or not at all. Raises :class:`UserError` if it exists, or the version is no adapter.
    """
    if version.kind != "adapter":
        raise UserError(
            f"version {version.version} of {version.model_id!r} is published whole, not as an adapter: leave --adapter "
            "out, or name a later version of a run with trainer.lora.rank above 0"
        )
    if target.exists():
        raise UserError(f"{target} exists already: name another directory, or remove it")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as scratch:
        partial = Path(scratch) / "adapter"
        partial.mkdir()
        found = weights.fetch(version.parts[-1], Path(scratch) / "cache")
        shutil.copyfile(found / weights.FILES["adapter"], partial / weights.FILES["adapter"])
        settings = json.loads((found / weights.ADAPTER_CONFIG).read_bytes())
        settings["base_model_name_or_path"] = str(model_dir)
        (partial / weights.ADAPTER_CONFIG).write_text(json.dumps(settings, indent=2) + "\n")
        partial.replace(target)


def export(model_dir: Path, version: WeightVersion, target: Path) -> None:
    """Write ``version`` of the model in ``model_dir`` to ``target``, which appears complete or not at all.

    Configuration, tokenizer and image processor are those of ``model_dir``. Weights have the names, and are in the
    precision, that they have there. Raises :class:`UserError` if ``target`` exists, or ``model_dir`` or the version's
    weights do not.
    """
    refuse_missing(model_dir)
    if target.exists():
        raise UserError(f"{target} exists already: name another directory, or remove it")
    target.parent.mkdir(parents=True, exist_ok=True)
    transformers_logging.disable_progress_bar()
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as scratch:
        partial = Path(scratch) / "model"
        shutil.copytree(model_dir, partial, ignore=shutil.ignore_patterns(*WEIGHTS))
        model = AutoModelForImageTextToText.from_pretrained(model_dir, dtype="auto")
        with torch.no_grad():
            weights.load(model, resident_weights.materialize_weights(version, Path(scratch) / "cache"))
        model.save_pretrained(partial)
        partial.replace(target)
