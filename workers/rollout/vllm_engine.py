"""The ``vllm`` engine: prompts and screenshots are prepared here, vLLM itself runs on a thread of its own.

vLLM runs in this process, without an engine process: no pixels and tokens travel, and a switch of weights is one
function call between two steps. torch lets other threads run while it computes, so the event loop stays responsive.
Import it only after :func:`workers.rollout.vllm_settings.environment` is set.
"""

import asyncio
import functools
import io
import random
import shutil
import tempfile
import time
from pathlib import Path

import structlog
from PIL import Image
from safetensors.torch import load_file

from dart_streams.config import Config
from dart_streams.policy import probe, recipe, weights
from dart_streams.policy.rendering import Renderer
from dart_streams.screens import FACTOR
from dart_streams.store import AsyncStore, connect_async
from dart_streams.telemetry.stall_detector import StallDetector
from topics.action_requests import ActionRequest
from topics.values import BlobRef, MessagePart, Sampling
from topics.weights import WeightVersion
from workers.rollout.engine import EngineFault, Generation, LoadFault
from workers.rollout.patches import PatchCache, Patches, Read
from workers.rollout.vllm_core import Core
from workers.rollout.vllm_thread import EngineThread
from workers.rollout.weight_schema import Expected

PATCH_CACHE_BYTES = 256 << 20
STOP_S = 1.0
BLANK = BlobRef(sha256="0" * 64, size=0, width=4 * FACTOR, height=4 * FACTOR)
WARMUP = [MessagePart(role="user", text="Click the button."), MessagePart(role="user", image=BLANK)]

log = structlog.get_logger()


class VllmEngine:
    """Generates with vLLM; screenshots are read with ``read``, by default from the store."""

    def __init__(self, config: Config, read: Read | None = None) -> None:
        self.config = config
        self.read = read
        self.folder = recipe.model_folder(config)
        self.renderer = Renderer(self.folder, config.policy.min_pixels, config.policy.max_pixels)
        self.expected = Expected(self.renderer.config)
        self.cache = tempfile.TemporaryDirectory(prefix="weights-")
        self.thread: EngineThread | None = None
        self.mode = config.rollout.switch_mode

    async def start(self, version: WeightVersion) -> None:
        """Build the engine, load ``version`` into it, and generate once: a first time compiles kernels."""
        folder = await self.fetched(version)
        self.read = self.read or await self.reader()
        self.images = PatchCache(self.renderer, self.read, PATCH_CACHE_BYTES)
        if self.thread is None:
            seed = random.SystemRandom().getrandbits(31)
            self.thread = EngineThread(functools.partial(Core, self.config, self.folder, self.renderer, seed))
        log.info("engine starting", version=version.version)
        loading = asyncio.ensure_future(self.switch(self.thread, folder, version))
        waiting = StallDetector(log, "vLLM to start", self.config.telemetry.stall_s)
        while not loading.done():
            await asyncio.wait({loading}, timeout=1.0)
            waiting.check()
        loading.result()
        blank = Image.new("RGB", (BLANK.width, BLANK.height), "white")
        pixels, grid = self.renderer.pixels([blank])
        await self.thread.generate(self.renderer.prompt(WARMUP), [Patches(pixels, grid[0])], Sampling(max_tokens=2))
        await self.compare(self.thread, folder, version)

    async def compare(self, thread: EngineThread, folder: Path, version: WeightVersion) -> None:
        """Hold the engine against what transformers made of the same weights, stored beside them in ``folder``.

        Raises
        ------
        ParityFault
            If they disagree, with the likely reason.
        """
        stored = probe.read(folder)
        if stored is None:
            log.warning("parity not checked", version=version.version, because=f"no {weights.PROBE} at {version.uri}")
            return
        probe.refuse_other_rendering(stored, self.renderer)
        prompt = self.renderer.prompt(probe.turns())
        with Image.open(io.BytesIO(probe.screen())) as screen:
            pixels, grid = self.renderer.pixels([screen.convert("RGB")])
        shown = [Patches(pixels, grid[0])]
        scored, dtype = await thread.call(lambda core: (core.score(prompt, shown, stored.tokens), core.dtype))
        found, bound = probe.mismatch(stored, scored), self.config.rollout.vllm.parity_nats
        if not found <= bound:
            raise probe.ParityFault(
                f"vLLM's log-probabilities of version {version.version}, in {dtype}, differ from the trainer's, in "
                f"{stored.dtype}, by {found:.3g} nats a token (rollout.vllm.parity_nats is {bound:g}): compare the "
                "dtype, policy.path, policy.min_pixels and policy.max_pixels of both. Half precision may need a larger "
                "bound"
            )
        log.info("parity checked", version=version.version, mismatch_nats=round(found, 6))

    async def generate(self, request: ActionRequest) -> Generation:
        """Answer one request, beside all others that are under way."""
        if self.thread is None:
            raise EngineFault("the engine has not started")
        prompt = self.renderer.prompt(request.turns)
        images, fetch_ms = await self.images.of(prompt.images)
        began = time.perf_counter()
        made = await self.thread.generate(prompt, images, request.sampling)
        return Generation(
            text=self.renderer.text(made.tokens),
            tokens=made.tokens,
            logprobs=made.logprobs,
            entropies=made.entropies,
            versions=made.versions,
            prompt_tokens=made.prompt_tokens,
            prompt_sha=prompt.sha,
            fetch_ms=fetch_ms,
            prefill_ms=(made.first_token_s - began) * 1000,
        )

    async def load(self, version: WeightVersion) -> float:
        """Fetch and check ``version`` while the old one serves, then switch between two steps."""
        if self.thread is None:
            raise LoadFault("the engine has not started")
        folder = await self.fetched(version)
        paused_ms = await self.switch(self.thread, folder, version)
        await asyncio.to_thread(remove_all_but, folder, Path(self.cache.name))
        return paused_ms

    async def switch(self, thread: EngineThread, folder: Path, version: WeightVersion) -> float:
        """Load the weights in ``folder`` in slices, steps in between, then switch to them; return the pause."""
        tensors = await asyncio.to_thread(load_file, folder / weights.FILE)
        slices = await thread.call(lambda core: core.load(tensors))
        while not await thread.call(lambda _: next(slices, True)):
            pass
        return await thread.call(lambda core: core.switch(version.version, self.mode))

    async def check(self) -> None:
        """Raise :class:`~workers.rollout.engine.EngineDead` if vLLM has failed."""
        if self.thread is not None:
            self.thread.check()

    async def stop(self) -> None:
        """End the thread and remove fetched weights."""
        if self.thread is not None:
            await self.thread.stop(STOP_S)
        self.cache.cleanup()

    async def fetched(self, version: WeightVersion) -> Path:
        """Return a local directory of ``version``, its digest and its layout checked."""
        started = time.perf_counter()
        try:
            folder = await asyncio.to_thread(weights.fetch, version, Path(self.cache.name))
        except (weights.WrongDigest, weights.MissingWeights, OSError) as error:
            raise LoadFault(str(error)) from None
        await asyncio.to_thread(self.expected.check, folder)
        log.debug("weights fetched", version=version.version, took_s=round(time.perf_counter() - started, 3))
        return folder

    async def reader(self) -> Read:
        """Connect to the store; raise :class:`~dart_streams.errors.ServiceUnavailable` if it does not answer."""
        store = self.config.store
        session = await connect_async(store)
        return AsyncStore(session, self.config.bus.run, store.blob_cache_mb, store.wait_s).get_blob


def remove_all_but(kept: Path, cache: Path) -> None:
    """Remove the copies of older versions."""
    for copy in cache.iterdir():
        if copy != kept:
            shutil.rmtree(copy, ignore_errors=True)
