"""Checks whether transformers, a model's processor and its chat template support it as a policy.

Only configuration and processor are loaded. :mod:`workers.rollout.vllm_fit` checks vLLM's side, and each rollout worker
compares log-probabilities at its start.
"""

import inspect
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedConfig

from dart_streams.actions.dialects import native
from dart_streams.policy import probe
from dart_streams.policy.model_folder import refuse_missing
from dart_streams.policy.rendering import Renderer, UnsupportedModel
from topics.values import MessagePart


def check(model_dir: Path, min_pixels: int, max_pixels: int) -> str:
    """Return the class name of a model that can be trained and rendered here.

    Raises :class:`UnsupportedModel` with the reason, :class:`~dart_streams.errors.UserError` for a missing model.
    """
    refuse_missing(model_dir)
    kind = class_of(load_configuration(model_dir))
    refuse_unusable(kind)
    renderer = Renderer(model_dir, min_pixels, max_pixels)
    # Turns of every kind: an instruction, then a history of screens and answers.
    instruction, screen = probe.probe_turns()
    answer = MessagePart(role="assistant", text=probe.ANSWER)
    system = MessagePart(role="system", text=native.SYSTEM)
    renderer.prompt([system, instruction, screen, answer, screen, answer, answer, screen])
    image = renderer.expansion(160, 210)
    if renderer.image_token not in image:
        raise UnsupportedModel(
            f"the processor of {kind.__name__} writes no image token ({renderer.image_token}) into a prompt that shows "
            "an image: its features have no place there"
        )
    return kind.__name__


def load_configuration(model_dir: Path) -> PreTrainedConfig:
    """Return a model's configuration; raise :class:`UnsupportedModel` for a type unknown to transformers."""
    try:
        return AutoConfig.from_pretrained(model_dir)
    except (ValueError, KeyError, OSError) as error:
        raise UnsupportedModel(
            f"transformers {transformers.__version__} does not read {model_dir}/config.json: {error}"
        ) from None


def class_of(config: PreTrainedConfig) -> Any:
    """Return transformers' image-text-to-text class of a model; raise :class:`UnsupportedModel` if there is none."""
    known = AutoModelForImageTextToText._model_mapping
    if type(config) not in known:
        raise UnsupportedModel(
            f"transformers {transformers.__version__} has no model of images and text of the type "
            f"{config.model_type!r} (AutoModelForImageTextToText)"
        )
    return known[type(config)]


def refuse_unusable(kind: Any) -> None:
    """Raise :class:`UnsupportedModel` unless the class can encode images separately from prompts."""
    if not hasattr(kind, "get_image_features"):
        raise UnsupportedModel(f"{kind.__name__} has no get_image_features: it encodes no images apart from a prompt")
    if "mm_encoder_outputs" not in inspect.signature(kind.forward).parameters:
        raise UnsupportedModel(
            f"{kind.__name__} takes no mm_encoder_outputs in transformers {transformers.__version__}: images that "
            "were encoded once cannot be given to it"
        )
