"""vLLM's engine as the engine thread drives it: add a request, make a step, switch weights between two steps.

Everything here runs on that one thread. Imports vllm: import it only after
:func:`workers.rollout.vllm_settings.environment` is set.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
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

from dart_streams.config import Config, SwitchMode
from dart_streams.policy.rendering import Prompt, Renderer
from topics.values import Sampling, VersionSpan
from workers.rollout import vllm_settings
from workers.rollout.engine import EngineFault
from workers.rollout.logits_processor import KEY, Entropies, processor_class
from workers.rollout.patches import Patches
from workers.rollout.weight_loading import DoubleBuffered, Incoming, InPlace, Tensors


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine generated for the request called ``key``; its first token was there at ``first_token_s``.

    That is a time of ``time.perf_counter``: the end of the engine step that made the token.
    """

    key: str
    tokens: list[int]
    logprobs: list[float]
    entropies: list[float]
    versions: list[VersionSpan]
    prompt_tokens: int
    first_token_s: float


class Asked(NamedTuple):
    """A request as it came."""

    prompt: Prompt
    images: Sequence[Patches]
    sampling: Sampling


class Core:
    """The engine in this process; :meth:`load` and :meth:`switch` before :meth:`add`, as it starts without weights."""

    def __init__(self, config: Config, model_dir: Path, renderer: Renderer, seed: int) -> None:
        self.image_pad: int = renderer.config.image_token_id
        self.merged: int = renderer.image_processor.merge_size**2
        self.entropies: Entropies = {}
        self.ids: dict[str, str] = {}
        self.first_token_s: dict[str, float] = {}
        self.asked: dict[str, Asked] = {}
        self.drained: list[Made] = []
        arguments = vllm_settings.arguments(config, model_dir, not current_platform.is_cpu(), seed)
        processor = processor_class(renderer.allowed_mask, self.entropies)
        self.llm = LLMEngine.from_engine_args(EngineArgs(**arguments, logits_processors=[processor]))
        self.incoming: Incoming = DoubleBuffered(self.llm) if current_platform.is_cpu() else InPlace(self.llm)

    @property
    def dtype(self) -> str:
        """What layers compute in."""
        return str(self.llm.model_config.dtype).removeprefix("torch.")

    @property
    def busy(self) -> bool:
        """Whether :meth:`step` has something to do."""
        return bool(self.drained) or self.llm.has_unfinished_requests()

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
        self.asked[key] = Asked(prompt, images, sampling)
        self.entropies[key] = {}

    def score(self, prompt: Prompt, images: Sequence[Patches], tokens: Sequence[int]) -> list[float]:
        """Return the log-probability (nats) of each of ``tokens`` as the answer, as it would be drawn.

        Only while nothing is under way: it makes steps of its own.
        """
        wanted = {f"score-{place}": place for place in range(len(tokens))}
        for key, place in wanted.items():
            params = SamplingParams(max_tokens=1, logprobs=1, logprob_token_ids=[tokens[place]], detokenize=False)
            sofar = msgspec.structs.replace(prompt, token_ids=[*prompt.token_ids, *tokens[:place]])
            self.llm.add_request(key, self.inputs(sofar, images), params)
        found: dict[int, float] = {}
        while len(found) < len(tokens):
            finished: list[Any] = self.llm.step()
            for output in finished:
                place = wanted[output.request_id]
                found[place] = output.outputs[0].logprobs[0][tokens[place]].logprob
        return [found[place] for place in range(len(tokens))]

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
        drained, self.drained = self.drained, []
        outputs = self.llm.step()
        now = time.perf_counter()
        for key, made in self.entropies.items():
            if made:
                self.first_token_s.setdefault(key, now)
        return [*drained, *(self.made(output) for output in outputs)]

    def made(self, output: Any) -> Made:
        """Take a finished request's results out of the books."""
        key = output.request_id
        answer = output.outputs[0]
        del self.ids[key], self.asked[key]
        entropies = self.entropies.pop(key)
        tokens = list(answer.token_ids)
        return Made(
            key=key,
            tokens=tokens,
            logprobs=[entry[token].logprob for token, entry in zip(tokens, answer.logprobs, strict=True)],
            entropies=[entropies[index] for index in range(len(tokens))],
            versions=[VersionSpan(version=int(s.version), start=s.start, end=s.end) for s in answer.weight_versions],
            prompt_tokens=len(output.prompt_token_ids),
            first_token_s=self.first_token_s.pop(key),
        )

    def abort(self, key: str) -> None:
        """Forget a request that nobody waits for any more."""
        if (internal := self.ids.pop(key, None)) is not None:
            self.llm.abort_request([internal], internal=True)
            del self.entropies[key], self.asked[key]
            self.first_token_s.pop(key, None)

    def load(self, tensors: Tensors) -> Iterator[None]:
        """Load the next version, in slices between which :meth:`step` goes on with the present one."""
        return self.incoming.load(tensors)

    def switch(self, version: int, mode: SwitchMode = "keep") -> float:
        """Switch to what was loaded, and return for how long no request was taken (milliseconds).

        With ``keep``, requests under way keep the tokens they have; the rest is computed anew with the new weights, as
        are images. With ``finish`` they end with the old weights first, with ``abort`` they begin anew with the new.
        """
        started = time.perf_counter()
        asked = dict(self.asked) if mode == "abort" else {}
        for key in asked:
            self.abort(key)
        while mode == "finish" and self.llm.has_unfinished_requests():
            self.drained = self.step()
        self.llm.reset_prefix_cache(reset_running_requests=True)
        self.incoming.exchange()
        self.llm.reset_encoder_cache()
        self.llm.set_weight_version(str(version))
        for key, request in asked.items():
            self.add(key, *request)
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
