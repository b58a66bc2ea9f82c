"""vLLM's engine on the engine thread: add a request, step, switch weights between steps.

Imports vllm: import it only after :func:`workers.rollout.vllm_settings.engine_environment` is set.
"""

import itertools
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import structlog
import torch
from vllm import EngineArgs, SamplingParams
from vllm.exceptions import VLLMServerError
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.llm_engine import LLMEngine

from dart_streams.config import Config, SwitchMode
from dart_streams.episodes.context import largest_screen
from dart_streams.errors import UserError
from dart_streams.policy import tensor_parallel
from dart_streams.policy.encoder_cache import embedding_bytes, encoder_capacity
from dart_streams.policy.rendering import Prompt, Renderer
from dart_streams.policy.shared_tensors import TensorPlace
from dart_streams.policy.staged_weights import second_set_place, vllm_utilization
from topics.values import Sampling, VersionSpan
from workers.rollout import vllm_images, vllm_settings
from workers.rollout.engine import EngineFault, Generation, request_boundary
from workers.rollout.images import EncodedImage
from workers.rollout.vllm_caches import EngineCaches
from workers.rollout.vllm_rank import BANNED_TOKENS, ENTROPIES, SHARED_MEMORY, unname_queues

log = structlog.get_logger()


class EngineRequest:
    """A request; ``future`` resolves to its generation without text.

    With ``scored`` that token stands for the only one sampled: its log-probability is returned.
    """

    def __init__(
        self, prompt: Prompt, images: Sequence[EncodedImage], sampling: Sampling, scored: int | None = None
    ) -> None:
        self.prompt = prompt
        self.images = images
        self.sampling = sampling
        self.scored = scored
        self.future: Future[Generation] = Future()
        self.created_s = time.perf_counter()
        self.first_token_s = 0.0
        self.internal_id = ""


class VllmCore:
    """The engine, which starts without weights: call :meth:`load` and :meth:`switch` before :meth:`add`."""

    def __init__(self, config: Config, model_dir: Path, renderer: Renderer, seed: int, weights_bytes: int) -> None:
        self.renderer = renderer
        self.requests: dict[str, EngineRequest] = {}
        self.dropped: list[str] = []
        """Keys of aborted requests, whose entropies the first rank still keeps."""
        self._keys = map(str, itertools.count())
        self.ranks = config.rollout.vllm.tensor_parallel
        on_gpu = not current_platform.is_cpu()
        total_bytes = current_platform.get_device_total_memory()
        wanted, rank_bytes = config.rollout.vllm.second_set, weights_bytes // self.ranks
        place = second_set_place(wanted, on_gpu, rank_bytes, total_bytes)
        log.info("second set of weights", wanted=wanted, place=place, weights_mb=rank_bytes >> 20, ranks=self.ranks)
        itemsize = (renderer.config.dtype or torch.float32).itemsize if on_gpu else torch.float32.itemsize
        embedding = embedding_bytes(renderer.config, itemsize)
        capacity = encoder_capacity(config, len(renderer.expansion(*largest_screen(config))), embedding)
        share = vllm_utilization(place, rank_bytes, total_bytes) - capacity * embedding / total_bytes
        shared_bytes = shutil.disk_usage(SHARED_MEMORY).free if self.ranks > 1 else 0
        arguments = vllm_settings.engine_arguments(config, model_dir, on_gpu, seed, share, shared_bytes)
        engine_config = EngineArgs(**arguments).create_engine_config()
        engine_config.scheduler_config.encoder_cache_size = capacity
        banned = ~renderer.allowed_mask(engine_config.model_config.get_vocab_size())
        engine_config.additional_config = {BANNED_TOKENS: banned.nonzero()[:, 0].tolist()}
        self.llm = LLMEngine.from_vllm_config(engine_config, disable_log_stats=True)
        self.caches = EngineCaches(self.llm)
        self.llm.collective_rpc("prepare_rank", args=(place, os.getpid()))
        if self.ranks > 1:
            unname_queues()

    def failure(self) -> str:
        """Return that a rank's process has ended, empty if none has; for any thread."""
        if not getattr(self.llm.model_executor, "is_failed", False):
            return ""
        return (
            f"one of vLLM's {self.ranks} ranks has ended (rollout.vllm.tensor_parallel): its error is in this log, or "
            "in the kernel's if it was killed for memory"
        )

    def close(self) -> None:
        """End the ranks that have a process of their own, and every process group of this process.

        Otherwise vLLM does so when Python collects the engine: at any time, even while another engine starts.
        """
        self.llm.engine_core.shutdown()

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
        """Add a request; if it can't be, its future has the fault."""
        key = next(self._keys)
        request.first_token_s = 0.0
        try:
            with request_boundary(VLLMServerError):
                inputs = vllm_images.prompt_inputs(request.prompt, request.images, self.renderer.placeholder)
                request.internal_id = self.llm.add_request(key, inputs, self._parameters(request, key))
        except EngineFault as fault:
            request.future.set_exception(fault)
        else:
            self.requests[key] = request

    def _parameters(self, request: EngineRequest, key: str) -> SamplingParams:
        return SamplingParams(
            temperature=request.sampling.temperature,
            top_p=request.sampling.top_p,
            max_tokens=request.sampling.max_tokens,
            stop_token_ids=[self.renderer.eos],
            logprobs=0 if request.scored is None else 1,
            logprob_token_ids=None if request.scored is None else [request.scored],
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            extra_args={ENTROPIES: key},
            skip_clone=True,
        )

    def step(self) -> None:
        """Generate one token for every request in flight; resolve finished requests."""
        outputs: list[Any] = self.llm.step()
        now_s = time.perf_counter()
        finished = [output.request_id for output in outputs]
        for key, request in self.requests.items():
            if not request.first_token_s and (key in finished or self.generated(request)):
                request.first_token_s = now_s
        if not outputs:
            return
        entropies, *_ = self.llm.collective_rpc("take_entropies", args=(finished, self.dropped))
        self.dropped = []
        for output, of_tokens in zip(outputs, entropies, strict=True):
            request = self.requests.pop(output.request_id)
            try:
                with request_boundary():
                    generation = generation_of(request, output, of_tokens)
            except EngineFault as fault:
                request.future.set_exception(fault)
            else:
                request.future.set_result(generation)

    def generated(self, request: EngineRequest) -> int:
        """Return how many tokens a request in flight has."""
        core: Any = self.llm.engine_core
        held = core.engine_core.scheduler.requests.get(request.internal_id)
        return held.num_output_tokens if held is not None else 0

    def abort(self, request: EngineRequest) -> None:
        """Abort a request if it is in flight."""
        for key in [key for key, other in self.requests.items() if other is request]:
            del self.requests[key]
            self.dropped.append(key)
            self.llm.abort_request([request.internal_id], internal=True)

    def load(self, tensors: Mapping[str, torch.Tensor | TensorPlace]) -> Iterator[None]:
        """Load the next version in slices; :meth:`step` may run between them. Ranks in other processes need places."""
        self.llm.collective_rpc("begin_load", args=(tensors,))
        while not all(self.llm.collective_rpc("load_slice")):
            yield

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
        self.llm.collective_rpc("exchange_weights")
        self.caches.drop_encodings()
        self.llm.set_weight_version(str(version))
        for request in aborted:
            self.add(request)
        return (time.perf_counter() - started) * 1000


def refuse_cut(request: EngineRequest, output: Any) -> None:
    """Raise EngineFault for an answer cut by the context, which says nothing about the policy."""
    completion, most = output.outputs[0], request.sampling.max_tokens
    if completion.finish_reason != "length" or len(completion.token_ids) >= most:
        return
    raise EngineFault(
        f"the context is full after {len(completion.token_ids)} tokens of {most}, with a prompt of "
        f"{len(output.prompt_token_ids)}: set smaller policy.max_images, policy.max_texts or policy.max_tokens"
    )


def generation_of(request: EngineRequest, output: Any, entropies: Mapping[int, float]) -> Generation:
    """Return vLLM's ``RequestOutput``, with entropies (nats) by token index, as a generation without text.

    Raises EngineFault if the context cut it.
    """
    refuse_cut(request, output)
    completion = output.outputs[0]
    tokens = list(completion.token_ids) if request.scored is None else [request.scored]
    spans = completion.weight_versions
    return Generation(
        text="",
        tokens=tokens,
        logprobs=[entry[token].logprob for token, entry in zip(tokens, completion.logprobs, strict=True)],
        entropies=[entropies[index] for index in range(len(tokens))],
        versions=[VersionSpan(version=int(span.version), start=span.start, end=span.end) for span in spans],
        prompt_tokens=len(output.prompt_token_ids),
        prompt_sha=request.prompt.sha,
        cached_tokens=output.num_cached_tokens or 0,
        prefill_ms=(request.first_token_s - request.created_s) * 1000,
    )


def refuse_ranks(config: Config, renderer: Renderer) -> None:
    """Raise UserError if the model, or this machine's GPUs, cannot be shared by the configured ranks."""
    ranks = config.rollout.vllm.tensor_parallel
    reason = tensor_parallel.sharding_refusal(renderer.config.to_dict(), ranks)
    if not reason and not current_platform.is_cpu():
        reason = tensor_parallel.device_refusal(ranks, torch.accelerator.device_count())
    if reason:
        raise UserError(reason)
