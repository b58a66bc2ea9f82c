"""vLLM's engine as the engine thread drives it: add a request, make a step, switch weights between two steps.

Everything here runs on that one thread. Imports vllm: import it only after
:func:`workers.rollout.vllm_settings.environment` is set.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from safetensors.torch import load_file
from vllm import EngineArgs, SamplingParams
from vllm.exceptions import VLLMClientError
from vllm.inputs.engine import MultiModalInput, TokensInput, mm_input, tokens_input
from vllm.multimodal.inputs import (
    MultiModalBatchedField,
    MultiModalFieldElem,
    MultiModalFlatField,
    MultiModalKwargsItem,
    MultiModalKwargsItems,
    PlaceholderRange,
)
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.llm_engine import LLMEngine

from dart_streams.config import Config
from dart_streams.policy import weights
from dart_streams.policy.rendering import Prompt, Renderer
from topics.values import Sampling, Segment
from workers.rollout import vllm_settings
from workers.rollout.allowed import KEY, Entropies, processor_class
from workers.rollout.engine import EngineFault
from workers.rollout.patches import Patches


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine generated for the request called ``key``; its first token was there at ``first_token_s``.

    That is a time of ``time.perf_counter``: the end of the engine step that made the token.
    """

    key: str
    tokens: list[int]
    logprobs: list[float]
    entropies: list[float]
    versions: list[Segment]
    prompt_tokens: int
    first_token_s: float


class Core:
    """The engine in this process; :meth:`switch` before the first :meth:`add`, as it starts without weights."""

    def __init__(self, config: Config, model_dir: Path, renderer: Renderer, seed: int) -> None:
        self.image_pad: int = renderer.config.image_token_id
        self.merged: int = renderer.image_processor.merge_size**2
        self.entropies: Entropies = {}
        self.ids: dict[str, str] = {}
        self.first_token_s: dict[str, float] = {}
        arguments = vllm_settings.arguments(config, model_dir, not current_platform.is_cpu(), seed)
        processor = processor_class(renderer.allowed_mask, self.entropies)
        self.llm = LLMEngine.from_engine_args(EngineArgs(**arguments, logits_processors=[processor]))

    @property
    def busy(self) -> bool:
        """Whether :meth:`step` has something to do."""
        return self.llm.has_unfinished_requests()

    def add(self, key: str, prompt: Prompt, images: Sequence[Patches], sampling: Sampling) -> None:
        """Take a request; raise :class:`~workers.rollout.engine.EngineFault` if it is too long, for instance."""
        try:
            self._add(key, prompt, images, sampling)
        except (ValueError, VLLMClientError) as error:
            raise EngineFault(str(error)) from None

    def _add(self, key: str, prompt: Prompt, images: Sequence[Patches], sampling: Sampling) -> None:
        params = SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_tokens,
            logprobs=0,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            extra_args={KEY: key},
            skip_clone=True,
        )
        self.ids[key] = self.llm.add_request(key, self.inputs(prompt, images), params)
        self.entropies[key] = {}

    def inputs(self, prompt: Prompt, images: Sequence[Patches]) -> MultiModalInput | TokensInput:
        """Return a prompt as vLLM has it after preprocessing: image pads repeated, patches attached."""
        if not images:
            return tokens_input(prompt.token_ids)
        token_ids: list[int] = []
        places = []
        shown = iter(images)
        for token in prompt.token_ids:
            if token != self.image_pad:
                token_ids.append(token)
                continue
            pads = int(next(shown).grid.prod()) // self.merged
            places.append(PlaceholderRange(offset=len(token_ids), length=pads))
            token_ids += [token] * pads
        return mm_input(
            token_ids,
            MultiModalKwargsItems({"image": [item(image) for image in images]}),
            {"image": [ref.sha256 for ref in prompt.images]},
            {"image": places},
        )

    def step(self) -> list[Made]:
        """Let every request under way make a token; return those that are finished."""
        outputs = self.llm.step()
        now = time.perf_counter()
        for key, made in self.entropies.items():
            if made:
                self.first_token_s.setdefault(key, now)
        return [self.made(output) for output in outputs]

    def made(self, output: Any) -> Made:
        """Take a finished request's results out of the books."""
        key = output.request_id
        answer = output.outputs[0]
        del self.ids[key]
        entropies = self.entropies.pop(key)
        tokens = list(answer.token_ids)
        return Made(
            key=key,
            tokens=tokens,
            logprobs=[entry[token].logprob for token, entry in zip(tokens, answer.logprobs, strict=True)],
            entropies=[entropies[index] for index in range(len(tokens))],
            versions=[Segment(version=int(s.version), start=s.start, end=s.end) for s in answer.weight_versions],
            prompt_tokens=len(output.prompt_token_ids),
            first_token_s=self.first_token_s.pop(key),
        )

    def abort(self, key: str) -> None:
        """Forget a request that nobody waits for any more."""
        if (internal := self.ids.pop(key, None)) is not None:
            self.llm.abort_request([internal], internal=True)
            del self.entropies[key]
            self.first_token_s.pop(key, None)

    def switch(self, folder: Path, version: int) -> float:
        """Load the weights in ``folder`` in place and return how long that took (milliseconds).

        Requests under way keep the tokens they have; the rest is computed anew with the new weights, as are images.
        """
        started = time.perf_counter()
        self.llm.reset_prefix_cache(reset_running_requests=True)
        tensors = load_file(folder / weights.FILE)
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(tensors.items())})
        self.llm.reset_encoder_cache()
        self.llm.set_weight_version(str(version))
        return (time.perf_counter() - started) * 1000


def item(image: Patches) -> MultiModalKwargsItem:
    """Return one image as an argument of the model."""
    pixels = MultiModalFlatField(slices=[slice(0, len(image.pixels))])
    return MultiModalKwargsItem(
        {
            "pixel_values": MultiModalFieldElem(data=image.pixels, field=pixels),
            "image_grid_thw": MultiModalFieldElem(data=image.grid, field=MultiModalBatchedField(keep_on_cpu=True)),
        }
    )
