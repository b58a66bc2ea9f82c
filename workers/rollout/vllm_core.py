"""vLLM's engine on the engine thread: add a request, step, switch weights between steps.

Imports vllm: import it only after :func:`workers.rollout.vllm_settings.engine_environment` is set.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import structlog
import torch
from vllm import EngineArgs, SamplingParams
from vllm.config import VllmConfig
from vllm.exceptions import VLLMClientError
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from dart_streams.config import Config, SwitchMode
from dart_streams.episodes.context import largest_screen
from dart_streams.policy.encoder_cache import embedding_bytes, encoder_capacity
from dart_streams.policy.rendering import Prompt, Renderer
from dart_streams.policy.staged_weights import second_set_place, vllm_utilization
from topics.values import Sampling, VersionSpan
from workers.rollout import vllm_images, vllm_settings
from workers.rollout.engine import EngineFault, Generation
from workers.rollout.images import EncodedImage
from workers.rollout.vllm_caches import EngineCaches
from workers.rollout.weight_loading import Tensors, loader_of

ENTROPIES = "entropies"
"""Extra sampling argument: a dict that receives entropies (nats) by token index; recomputed tokens overwrite."""

log = structlog.get_logger()


class EngineRequest:
    """A request; ``future`` resolves to its generation without text, ``entropies`` are nats by token index."""

    def __init__(self, prompt: Prompt, images: Sequence[EncodedImage], sampling: Sampling) -> None:
        self.prompt = prompt
        self.images = images
        self.sampling = sampling
        self.future: Future[Generation] = Future()
        self.created_s = time.perf_counter()
        self.first_token_s = 0.0
        self.internal_id = ""
        self.entropies: dict[int, float] = {}


class VllmCore:
    """The engine, which starts without weights: call :meth:`load` and :meth:`switch` before :meth:`add`."""

    def __init__(self, config: Config, model_dir: Path, renderer: Renderer, seed: int, weights_bytes: int) -> None:
        self.renderer = renderer
        self.requests: dict[str, EngineRequest] = {}
        self._keys = map(str, itertools.count())
        on_gpu = not current_platform.is_cpu()
        total_bytes = current_platform.get_device_total_memory()
        wanted = config.rollout.vllm.second_set
        place = second_set_place(wanted, on_gpu, weights_bytes, total_bytes)
        log.info("second set of weights", wanted=wanted, place=place, weights_mb=weights_bytes >> 20)
        itemsize = (renderer.config.dtype or torch.float32).itemsize if on_gpu else torch.float32.itemsize
        embedding = embedding_bytes(renderer.config, itemsize)
        capacity = encoder_capacity(config, len(renderer.expansion(*largest_screen(config))), embedding)
        share = vllm_utilization(place, weights_bytes, total_bytes) - capacity * embedding / total_bytes
        arguments = vllm_settings.engine_arguments(config, model_dir, on_gpu, seed, share)
        processor = processor_class(renderer.allowed_mask)
        engine_config = EngineArgs(**arguments, logits_processors=[processor]).create_engine_config()
        engine_config.scheduler_config.encoder_cache_size = capacity
        self.llm = LLMEngine.from_vllm_config(engine_config, disable_log_stats=True)
        self.caches = EngineCaches(self.llm)
        self.loader = loader_of(self.llm, place)

    @property
    def dtype(self) -> str:
        """The layers' dtype."""
        return str(self.llm.model_config.dtype).removeprefix("torch.")

    @property
    def context(self) -> int:
        """Maximum tokens of prompt and answer, limited by the model or the key-value cache."""
        return int(self.llm.model_config.max_model_len)

    def image_encoder(self, renderer: Renderer) -> vllm_images.ImageEncoder:
        """Return a thread-safe image encoder for this engine with the renderer's pixel bounds."""
        return vllm_images.ImageEncoder(self.llm.model_config, renderer)

    @property
    def busy(self) -> bool:
        """Whether requests are in flight."""
        return self.llm.has_unfinished_requests()

    def add(self, request: EngineRequest) -> None:
        """Add a request; raise :class:`~workers.rollout.engine.EngineFault` if vLLM rejects it."""
        key, sampling = next(self._keys), request.sampling
        request.entropies, request.first_token_s = {}, 0.0
        params = SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_tokens,
            stop_token_ids=[self.renderer.eos],
            logprobs=0,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            extra_args={ENTROPIES: request.entropies},
            skip_clone=True,
        )
        try:
            request.internal_id = self.llm.add_request(
                key, vllm_images.prompt_inputs(request.prompt, request.images, self.renderer.placeholder), params
            )
        except (ValueError, VLLMClientError) as error:
            raise EngineFault(str(error)) from None
        self.requests[key] = request

    def score(self, prompt: Prompt, images: Sequence[EncodedImage], tokens: Sequence[int]) -> list[float]:
        """Return the log-probability (nats) of each response token; call only without requests in flight."""
        places = {f"score-{place}": place for place in range(len(tokens))}
        for key, place in places.items():
            params = SamplingParams(max_tokens=1, logprobs=1, logprob_token_ids=[tokens[place]], detokenize=False)
            sofar = msgspec.structs.replace(prompt, token_ids=[*prompt.token_ids, *tokens[:place]])
            self.llm.add_request(key, vllm_images.prompt_inputs(sofar, images, self.renderer.placeholder), params)
        logprobs: dict[int, float] = {}
        while len(logprobs) < len(tokens):
            finished: list[Any] = self.llm.step()
            for output in finished:
                place = places[output.request_id]
                logprobs[place] = output.outputs[0].logprobs[0][tokens[place]].logprob
        return [logprobs[place] for place in range(len(tokens))]

    def step(self) -> None:
        """Generate one token for every request in flight; resolve finished requests."""
        outputs: list[Any] = self.llm.step()
        now_s = time.perf_counter()
        for request in self.requests.values():
            if request.entropies and not request.first_token_s:
                request.first_token_s = now_s
        for output in outputs:
            request = self.requests.pop(output.request_id)
            if (fault := cut_short(request, output)) is not None:
                request.future.set_exception(fault)
            else:
                request.future.set_result(generation_of(request, output))

    def abort(self, request: EngineRequest) -> None:
        """Abort a request if it is in flight."""
        for key in [key for key, other in self.requests.items() if other is request]:
            del self.requests[key]
            self.llm.abort_request([request.internal_id], internal=True)

    def load(self, tensors: Tensors) -> Iterator[None]:
        """Load the next version in slices; :meth:`step` may run between them."""
        return self.loader.load(tensors)

    def switch(self, version: int, mode: SwitchMode = "keep") -> float:
        """Switch to the loaded weights; return the pause (ms).

        ``keep``: requests in flight keep their tokens and recompute KV cache and images. ``finish``: they finish with
        the old weights first. ``abort``: they restart with the new weights.
        """
        started = time.perf_counter()
        aborted = list(self.requests.values()) if mode == "abort" else []
        for request in aborted:
            self.abort(request)
        while mode == "finish" and self.busy:
            self.step()
        self.caches.drop_prefixes()
        self.loader.exchange()
        self.caches.drop_encodings()
        self.llm.set_weight_version(str(version))
        for request in aborted:
            self.add(request)
        return (time.perf_counter() - started) * 1000


def cut_short(request: EngineRequest, output: Any) -> EngineFault | None:
    """Return the fault of an answer cut by the context, which says nothing about the policy; None otherwise."""
    completion, most = output.outputs[0], request.sampling.max_tokens
    if completion.finish_reason != "length" or len(completion.token_ids) >= most:
        return None
    return EngineFault(
        f"the context is full after {len(completion.token_ids)} tokens of {most}, with a prompt of "
        f"{len(output.prompt_token_ids)}: set smaller policy.max_images, policy.max_texts or policy.max_tokens"
    )


def generation_of(request: EngineRequest, output: Any) -> Generation:
    """Return vLLM's ``RequestOutput`` as a generation without text."""
    completion = output.outputs[0]
    tokens = list(completion.token_ids)
    spans = completion.weight_versions
    return Generation(
        text="",
        tokens=tokens,
        logprobs=[entry[token].logprob for token, entry in zip(tokens, completion.logprobs, strict=True)],
        entropies=[request.entropies[index] for index in range(len(tokens))],
        versions=[VersionSpan(version=int(span.version), start=span.start, end=span.end) for span in spans],
        prompt_tokens=len(output.prompt_token_ids),
        prompt_sha=request.prompt.sha,
        cached_tokens=output.num_cached_tokens or 0,
        prefill_ms=(request.first_token_s - request.created_s) * 1000,
    )


class RowState(NamedTuple):
    """A request in the batch; ``tokens`` is vLLM's own growing list."""

    entropies: dict[int, float]
    temperature: float
    tokens: list[int]


def processor_class(allowed_mask: Callable[[int], torch.Tensor]) -> type[LogitsProcessor]:
    """Return a logits processor that masks all but ``allowed_mask(vocabulary)`` and records entropies.

    This costs one softmax a step; log-probabilities of the whole vocabulary from vLLM would cost as much as generating.
    vLLM instantiates the class in this process.
    """

    class AllowedTokens(LogitsProcessor):
        def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
            self.banned = ~allowed_mask(vllm_config.model_config.get_vocab_size()).to(device)
            self.device = device
            self.rows: dict[int, RowState] = {}

        def is_argmax_invariant(self) -> bool:
            return False

        def update_state(self, batch_update: BatchUpdate | None) -> None:
            process_dict_updates(self.rows, batch_update, row_of)

        def apply(self, logits_BV: torch.Tensor) -> torch.Tensor:
            logits_BV.masked_fill_(self.banned, float("-inf"))
            rows = self.rows
            scales = [rows[index].temperature if index in rows else 1.0 for index in range(len(logits_BV))]
            scaled_BV = logits_BV / torch.tensor(scales, device=self.device).unsqueeze(1)
            for index, entropy in enumerate(torch.special.entr(scaled_BV.softmax(-1)).sum(-1).tolist()):
                if index in rows:
                    rows[index].entropies[len(rows[index].tokens)] = entropy
            return logits_BV

    return AllowedTokens


def row_of(params: SamplingParams, _prompt: list[int] | None, tokens: list[int]) -> RowState | None:
    """Return the state of a request that enters the batch; greedy requests have entropies of temperature 1."""
    entropies = (params.extra_args or {}).get(ENTROPIES)
    return None if entropies is None else RowState(entropies, params.temperature or 1.0, tokens)
