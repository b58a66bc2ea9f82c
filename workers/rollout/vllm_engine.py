"""The ``vllm`` engine: prompts and screenshots are prepared here, vLLM runs on its own thread.

Without an engine process no pixels or tokens cross processes. torch releases the GIL, so the event loop stays
responsive. Import it only after :func:`workers.rollout.vllm_settings.engine_environment` is set.
"""

import asyncio
import contextlib
import functools
import math
import queue
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import structlog

from dart_streams.actions.dialects import Dialect
from dart_streams.config import Config
from dart_streams.errors import UserError
from dart_streams.policy import finite, probe, recipe, weight_location, weights
from dart_streams.policy.rendering import Prompt, Renderer, count_longest, renderer_of
from dart_streams.policy.resident_weights import ResidentWeights
from dart_streams.policy.shared_tensors import SharedTensors
from dart_streams.store import open_store
from dart_streams.telemetry.stall_detector import StallDetector
from topics.action_requests import ActionRequest
from topics.values import Sampling, VersionSpan
from topics.weights import WeightVersion
from workers.rollout.engine import Engine, EngineDead, EngineFault, Generation, LoadFault, Recalled, request_boundary
from workers.rollout.generated_answers import GeneratedAnswers
from workers.rollout.images import EncodedImage, ImageCache, ReadBlob
from workers.rollout.vllm_core import EngineRequest, VllmCore, refuse_ranks
from workers.rollout.weight_schema import WeightSchema

IMAGE_CACHE_BYTES = 256 << 20
TRAJECTORIES = 8
"""Trajectories whose answers are remembered, for each request in flight."""
STOP_TIMEOUT_S = 1.0

T = TypeVar("T")
Command = Callable[[VllmCore], None]

log = structlog.get_logger()


class EngineThread:
    """Thread that runs vLLM and executes commands between two steps.

    Requests that arrive by the next step join it; with ``gather_s`` the first waits that long (seconds) for others.
    After an unexpected error, or a step or command longer than ``hang_s``, every call fails with :class:`EngineDead`.
    """

    def __init__(self, build: Callable[[], VllmCore], gather_s: float = 0.0, hang_s: float = math.inf) -> None:
        self.build = build
        self.gather_s = gather_s
        self.hang_s = hang_s
        self.loop = asyncio.get_running_loop()
        self.core: VllmCore | None = None
        self.dead: EngineDead | None = None
        self._commands: queue.SimpleQueue[Command | EngineRequest | None] = queue.SimpleQueue()
        self._gathered: list[EngineRequest] = []
        """Requests waiting for others, oldest first; used by the thread only."""
        self._began_s: float | None = None
        """Start of the present step or command; None while idle or starting."""
        self._pending: set[Future[Any]] = set()
        # A daemon, so that a hanging start does not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="vllm", daemon=True)
        self._thread.start()

    async def generate(
        self, prompt: Prompt, images: Sequence[EncodedImage], sampling: Sampling, scored: int | None = None
    ) -> Generation:
        """Generate a response without text, aborted when cancelled; raise EngineFault if rejected, or EngineDead.

        With ``scored`` it is that one token.
        """
        request = EngineRequest(prompt, images, sampling, scored)
        try:
            return await self._submit(request, request.future)
        except asyncio.CancelledError:
            self._commands.put(lambda core: self._abort(core, request))
            raise

    async def score(
        self, prompt: Prompt, images: Sequence[EncodedImage], sampling: Sampling, tokens: Sequence[int]
    ) -> Generation:
        """Return ``tokens`` as the response, each scored behind those before it; raise as :meth:`generate`."""
        one, replace = msgspec.structs.replace(sampling, max_tokens=1), msgspec.structs.replace
        parts = [replace(prompt, token_ids=[*prompt.token_ids, *tokens[:place]]) for place in range(len(tokens))]
        asked = (self.generate(part, images, one, token) for part, token in zip(parts, tokens, strict=True))
        made = await asyncio.gather(*asked)
        runs = groupby(range(len(made)), key=lambda place: made[place].versions[0].version)
        places = [(version, list(run)) for version, run in runs]
        return replace(
            made[0],
            tokens=list(tokens),
            logprobs=[each.logprobs[0] for each in made],
            entropies=[each.entropies[0] for each in made],
            versions=[VersionSpan(version=version, start=run[0], end=run[-1] + 1) for version, run in places],
        )

    async def call(self, function: Callable[[VllmCore], T]) -> T:
        """Run ``function`` on the thread between two steps; its errors end the engine."""
        future: Future[T] = Future()
        return await self._submit(lambda core: future.set_result(function(core)), future)

    async def _submit(self, command: Command | EngineRequest, future: Future[T]) -> T:
        """Queue a command or request; return the result set on ``future``."""
        self.check()
        future.set_running_or_notify_cancel()  # The thread may set it even if the caller is cancelled.
        self._pending.add(future)
        self._commands.put(command)
        try:
            return await asyncio.wrap_future(future)
        finally:
            self._pending.discard(future)

    def check(self) -> None:
        """Raise :class:`EngineDead` if the thread or a rank of vLLM has ended, or the thread hangs."""
        began_s = self._began_s
        if began_s is not None and (lasts_s := time.perf_counter() - began_s) > self.hang_s:
            self._fail(
                EngineDead(
                    f"vLLM hangs: a step or a switch has not returned for {lasts_s:.0f} s (rollout.vllm.hang_s is "
                    f"{self.hang_s:g})"
                )
            )
        if self.core is not None and (reason := self.core.failure()):
            self._fail(EngineDead(reason))
        if self.dead is not None:
            raise self.dead

    async def stop(self, timeout_s: float) -> None:
        """End the thread after its present step; a starting thread is abandoned."""
        self._commands.put(None)
        await asyncio.to_thread(self._thread.join, timeout_s)

    def _run(self) -> None:
        core: VllmCore | None = None
        try:
            core = self.core = self.build()
            while self._execute_commands(core) and self.dead is None:
                if core.busy:
                    with self._timed():
                        core.step()
        except BaseException as error:
            if self.dead is None:
                self.loop.call_soon_threadsafe(self._die, error)
                raise
        finally:
            self.core = None
            if core is not None:
                core.close()

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        self._began_s = time.perf_counter()
        yield
        self._began_s = None

    def _execute_commands(self, core: VllmCore) -> bool:
        """Execute queued commands, waiting while idle; return False to end."""
        while True:
            left_s = self._left_s()
            if left_s == 0.0:
                self._admit(core)
            try:
                command = self._commands.get(block=not core.busy, timeout=left_s or None)
            except queue.Empty:
                if core.busy:
                    return True
                continue
            if command is None:
                return False
            if isinstance(command, EngineRequest):
                self._gathered.append(command)
            else:
                with self._timed():
                    command(core)

    def _left_s(self) -> float | None:
        """Return how long the oldest gathered request still waits; None without one."""
        if not self._gathered:
            return None
        return max(0.0, self._gathered[0].created_s + self.gather_s - time.perf_counter())

    def _admit(self, core: VllmCore) -> None:
        for request in self._gathered:
            core.add(request)
        self._gathered.clear()

    def _abort(self, core: VllmCore, request: EngineRequest) -> None:
        if request in self._gathered:
            self._gathered.remove(request)
        else:
            core.abort(request)

    def _die(self, error: BaseException) -> None:
        dead = EngineDead(f"vLLM failed: {type(error).__name__}: {error}")
        dead.__cause__ = error
        self._fail(dead)

    def _fail(self, dead: EngineDead) -> None:
        """Fail all pending and future calls with the first error."""
        self.dead = self.dead or dead
        for future in self._pending:
            if not future.done():
                future.set_exception(self.dead)


class VllmEngine(Engine):
    """Generates with vLLM; ``read`` reads screenshots, by default from the store."""

    def __init__(self, config: Config, read: ReadBlob | None = None) -> None:
        self.config = config
        self.read = read
        self.folder = recipe.model_folder(config)
        self.renderer = renderer_of(self.folder, config.policy)
        refuse_ranks(config, self.renderer)
        self.schema = WeightSchema(self.renderer.config)
        self.answers = GeneratedAnswers(TRAJECTORIES * config.rollout.max_in_flight)
        self.cache = tempfile.TemporaryDirectory(prefix="weights-")
        self.shared = SharedTensors() if config.rollout.vllm.tensor_parallel > 1 else None
        lasting = config.trainer.publishes_parts
        self.resident = ResidentWeights(Path(self.cache.name), lasting=lasting, shared=self.shared)
        self.served_sha256: str | None = None
        self.thread: EngineThread | None = None
        self.mode = config.rollout.switch_mode
        self._resources = contextlib.AsyncExitStack()

    async def start(self, version: WeightVersion) -> None:
        """Build the engine, load ``version``, and generate once to compile kernels."""
        folder = await self.fetch(version)
        if self.read is None:
            self.read = (await open_store(self.config, self._resources)).get_blob
        if self.thread is None:
            seed = random.SystemRandom().getrandbits(31)
            set_bytes = self.schema.elements * self.schema.dtype.itemsize
            build = functools.partial(VllmCore, self.config, self.folder, self.renderer, seed, set_bytes)
            settings = self.config.rollout.vllm
            self.thread = EngineThread(build, settings.gather_ms / 1000, settings.hang_s)
        log.info("engine starting", version=version.version)
        switching = asyncio.ensure_future(self.switch(self.thread, version))
        stalls = StallDetector(log, "vLLM to start", self.config.telemetry.stall_s)
        while not switching.done():
            await asyncio.wait({switching}, timeout=1.0)
            stalls.check()
        switching.result()
        encode = await self.thread.call(lambda core: core.image_encoder(self.renderer))
        self.images = ImageCache(encode, self.read, IMAGE_CACHE_BYTES)
        context = await self.thread.call(lambda core: core.context)
        if self.config.env.screen and (reason := count_longest(self.renderer, self.config, steps=1).refusal(context)):
            raise UserError(f"no first prompt fits (rollout.vllm.kv_cache_gib may hold less than a context): {reason}")
        screen = await asyncio.to_thread(encode, probe.draw_screen())
        await self.thread.generate(self.renderer.prompt(probe.probe_turns()), [screen], Sampling(max_tokens=2))
        await self.check_parity(self.thread, screen, folder, version)

    async def check_parity(
        self, thread: EngineThread, screen: EncodedImage, folder: Path, version: WeightVersion
    ) -> None:
        """Compare log-probabilities with the trainer's, stored in ``folder``; raise ParityFault if they differ."""
        stored = probe.read(folder)
        if stored is None:
            log.warning("parity not checked", version=version.version, reason=f"no {weights.PROBE} at {version.uri}")
            return
        probe.refuse_other_rendering(stored, self.renderer)
        prompt = self.renderer.prompt(probe.probe_turns())
        dtype = await thread.call(lambda core: core.dtype)
        scored = await thread.score(prompt, [screen], Sampling(), stored.tokens)
        mismatch, bound = probe.mean_mismatch(stored, scored.logprobs), self.config.rollout.vllm.parity_nats
        if not mismatch <= bound:
            raise probe.ParityFault(
                f"vLLM's log-probabilities of version {version.version}, in {dtype}, differ from the trainer's, in "
                f"{stored.dtype}, by {mismatch:.3g} nats a token (rollout.vllm.parity_nats is {bound:g}): compare the "
                "dtype, policy.path, policy.min_pixels and policy.max_pixels of both. Half precision may need a larger "
                "bound"
            )
        log.info("parity checked", version=version.version, mismatch_nats=round(mismatch, 6))

    async def generate(self, request: ActionRequest) -> Generation:
        """Answer a request, or score the tokens that it brings."""
        if self.thread is None:
            raise EngineFault("the engine has not started")
        recorded = request.recorded or None
        with request_boundary():
            brought = {self.renderer.text(tokens): tokens for tokens in recorded.before} if recorded else {}
            shown = brought if recorded else self.answers.of(request.trajectory_id)
            prompt = self.renderer.prompt(request.turns, shown)
        images, fetch_ms = await self.images.get(prompt.images)
        if recorded and recorded.tokens:
            generation = await self.thread.score(prompt, images, request.sampling, recorded.tokens)
        else:
            generation = await self.thread.generate(prompt, images, request.sampling)
        with request_boundary():
            text = self.renderer.text(generation.tokens)
            if recorded is None:
                self.answers.add(request.trajectory_id, text, generation.tokens)
            recalled = compare_history(self.renderer, self.config.policy.dialect.build(), generation.tokens, text)
        return msgspec.structs.replace(generation, text=text, fetch_ms=fetch_ms, recalled=recalled)

    async def load(self, version: WeightVersion) -> float:
        """Fetch and check ``version`` while the old one serves, then switch between two steps."""
        if self.thread is None:
            raise LoadFault("the engine has not started")
        folder = await self.fetch(version)
        paused_ms = await self.switch(self.thread, version)
        await asyncio.to_thread(remove_all_but, folder, Path(self.cache.name))
        return paused_ms

    async def switch(self, thread: EngineThread, version: WeightVersion) -> float:
        """Load the resident weights in slices between steps, then switch; return the pause (ms)."""
        tensors, sha256 = self.resident.tensors, self.resident.sha256
        given = self.shared.places(tensors) if self.shared is not None else tensors
        slices = await thread.call(lambda core: core.load(given))
        while not await thread.call(lambda _: next(slices, True)):
            pass
        paused_ms = await thread.call(lambda core: core.switch(version.version, self.mode))
        self.served_sha256 = sha256
        if not self.resident.lasting:
            self.resident.forget()
        return paused_ms

    def digest(self) -> str | None:
        """Return the SHA-256 (hex) of the tensors given to vLLM."""
        return self.served_sha256

    async def check(self) -> None:
        """Raise :class:`~workers.rollout.engine.EngineDead` if vLLM has failed or hangs."""
        if self.thread is not None:
            self.thread.check()

    async def stop(self) -> None:
        """End the thread and remove fetched weights."""
        if self.thread is not None:
            await self.thread.stop(STOP_TIMEOUT_S)
        self.cache.cleanup()
        await self._resources.aclose()

    async def fetch(self, version: WeightVersion) -> Path:
        """Read ``version`` into memory, of deltas the missing ones; check it, and return its directory."""
        for part in version.parts:
            if reason := weight_location.location_refusal(part.uri, weight_location.base_of(self.config)):
                raise LoadFault(f"version {version.version} is not fetched: {reason}")
        started = time.perf_counter()
        try:
            await asyncio.to_thread(self.resident.advance, version)
        except (weights.WrongDigest, weights.MissingWeights, OSError) as error:
            raise LoadFault(str(error)) from None
        try:
            self.schema.check(self.resident.tensors, version.uri)
            if fault := await asyncio.to_thread(finite.find_nonfinite, self.resident.tensors.items()):
                raise LoadFault(f"version {version.version} at {version.uri} is not finite: {fault}")
        except LoadFault:
            self.resident.forget()
            raise
        log.debug("weights fetched", version=version.version, took_s=round(time.perf_counter() - started, 3))
        return self.resident.folder


def compare_history(renderer: Renderer, dialect: Dialect, tokens: Sequence[int], text: str) -> Recalled:
    """Compare an answer's tokens with those that later prompts have for its ``text``."""
    shown = dialect.history_text(text)
    if shown != text:
        return "rewritten"
    return "same" if renderer.answer_tokens(shown)[:-1] == renderer.without_end(tokens) else "other"


def remove_all_but(current: Path, cache: Path) -> None:
    """Remove copies of older versions."""
    for copy in cache.iterdir():
        if copy != current:
            shutil.rmtree(copy, ignore_errors=True)
