"""Screenshots as model input, each processed once by vLLM's processor.

Imports vllm: import it only after :func:`workers.rollout.vllm_settings.engine_environment` is set.
"""

import dataclasses
import threading
from collections.abc import Sequence
from typing import Any

import torch
from vllm.config import ModelConfig
from vllm.inputs.engine import MultiModalInput, TokensInput, mm_input, tokens_input
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.inputs import MultiModalKwargsItems, PlaceholderRange

from dart_streams import pictures
from dart_streams.policy.probe import ParityFault
from dart_streams.policy.rendering import Prompt, Renderer
from workers.rollout.engine import EngineFault
from workers.rollout.images import EncodedImage


class ImageEncoder:
    """Encodes images for the model of ``model_config`` within the renderer's pixel bounds."""

    def __init__(self, model_config: ModelConfig, renderer: Renderer) -> None:
        self.renderer = renderer
        self.processor = MULTIMODAL_REGISTRY.create_processor(model_config)
        self._lock = threading.Lock()

    def __call__(self, data: bytes) -> EncodedImage:
        """Return an image's inputs; thread-safe.

        Raises :class:`UnusablePicture`, :class:`ParityFault` if tokens differ.
        """
        image = pictures.decode_picture(data)
        with self._lock:  # vLLM's own tokenizer is not thread-safe.
            processed: Any = self.processor(
                [self.renderer.placeholder],
                self.processor.info.parse_mm_data({"image": [image]}),
                hf_processor_mm_kwargs=self.renderer.image_bounds,
            )
        wanted = self.renderer.expansion(*image.size)
        tokens = list(processed["prompt_token_ids"])
        if tokens != wanted:
            raise ParityFault(
                f"the image processors of vLLM and transformers disagree: {len(tokens)} and {len(wanted)} tokens, or "
                f"other ids, for an image of {image.width}x{image.height}. Install what requirements/model.txt names"
            )
        [item], [place] = processed["mm_kwargs"]["image"], processed["mm_placeholders"]["image"]
        elements = item.values() if item is not None else ()
        size = sum(element.data.nbytes for element in elements if isinstance(element.data, torch.Tensor))
        return EncodedImage(tokens=tokens, item=item, place=place, size=size)


def prompt_inputs(prompt: Prompt, images: Sequence[EncodedImage], placeholder: int) -> MultiModalInput | TokensInput:
    """Return a prompt as vLLM's preprocessing would, with each image's tokens and inputs at its placeholder.

    Raises EngineFault if it has another number of placeholders.
    """
    if (shown := prompt.token_ids.count(placeholder)) != len(images):
        raise EngineFault(f"the prompt has {shown} places of images, and {len(images)} images")
    if not images:
        return tokens_input(prompt.token_ids)
    token_ids: list[int] = []
    places: list[PlaceholderRange] = []
    remaining = iter(images)
    for token in prompt.token_ids:
        if token != placeholder:
            token_ids.append(token)
            continue
        image = next(remaining)
        places.append(dataclasses.replace(image.place, offset=len(token_ids) + image.place.offset))
        token_ids += image.tokens
    return mm_input(
        token_ids,
        MultiModalKwargsItems({"image": [image.item for image in images]}),
        {"image": [ref.sha256 for ref in prompt.images]},
        {"image": places},
    )
