"""Screenshots as the served model's input, by vLLM's own processor of the model's family.

An image is processed alone and once; a prompt is put together of its images' tokens and inputs. Imports vllm: import it
only after :func:`workers.rollout.vllm_settings.engine_environment` is set.
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
from workers.rollout.images import EncodedImage


class ImageEncoder:
    """Encodes images for the model of ``model_config``, with the bounds on pixels that ``renderer`` has."""

    def __init__(self, model_config: ModelConfig, renderer: Renderer) -> None:
        self.renderer = renderer
        self.processor = MULTIMODAL_REGISTRY.create_processor(model_config)
        self._lock = threading.Lock()

    def __call__(self, data: bytes) -> EncodedImage:
        """Return an encoded image's inputs; from any thread.

        Raises :class:`UnusablePicture` if it is none, :class:`ParityFault` if vLLM would show the model other tokens of
        it than the trainer.
        """
        image = pictures.decode_picture(data)
        with self._lock:  # Tokenizers are not thread-safe.
            made: Any = self.processor(
                [self.renderer.placeholder],
                self.processor.info.parse_mm_data({"image": [image]}),
                hf_processor_mm_kwargs=self.renderer.image_bounds,
            )
            wanted = self.renderer.expansion(*image.size)
        tokens = list(made["prompt_token_ids"])
        if tokens != wanted:
            raise ParityFault(
                f"of an image of {image.width}x{image.height} vLLM makes {len(tokens)} tokens, and transformers makes "
                f"{len(wanted)}, or others: this model's processors in the two libraries disagree"
            )
        [item], [place] = made["mm_kwargs"]["image"], made["mm_placeholders"]["image"]
        elements = item.values() if item is not None else ()
        size = sum(element.data.nbytes for element in elements if isinstance(element.data, torch.Tensor))
        return EncodedImage(tokens=tokens, item=item, place=place, size=size)


def prompt_inputs(prompt: Prompt, images: Sequence[EncodedImage], placeholder: int) -> MultiModalInput | TokensInput:
    """Return a prompt as vLLM's preprocessing would: the tokens and inputs of each image in its placeholder's place."""
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
