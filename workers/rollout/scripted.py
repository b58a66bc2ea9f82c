"""Engine without a model: answers by the instruction's text, or at random, after a fixed latency.

Answers depend on the request alone. Log-probabilities and entropies belong to one synthetic distribution per token.
With a ``[workload]`` latency follows the workload's engine, and a weight switch pauses generation.
"""

import asyncio
import bisect
import functools
import hashlib
import math
import random
import re
import struct

import msgspec

from dart_streams import actions
from dart_streams.actions.dialects import View
from dart_streams.config import Config
from dart_streams.screens import smart_resize
from topics.action_requests import ActionRequest
from topics.values import VersionSpan
from topics.weights import WeightVersion
from workers.rollout.engine import Engine, Generation, request_boundary

VOCABULARY = 1024
"""Upper bound of synthetic token ids."""
ALTERNATIVES = 15
"""Tokens that share the probability left by the sampled token."""

POINT = re.compile(r"\((\d+),\s*(\d+)\)")
PIECES = re.compile(r"\d|[A-Za-z]+|\s+|[^\w\s]|_")


class ScriptedEngine(Engine):
    """Answers after ``latency_ms`` or the workload's time; a weight switch changes the reported version."""

    def __init__(self, config: Config) -> None:
        self.settings = config.rollout.scripted
        self.workload = config.workload
        self.slots = config.rollout.max_in_flight
        self.policy = config.policy
        self.switches: list[tuple[float, int]] = []
        self.in_flight = 0
        self.pauses = Pauses()

    async def start(self, version: WeightVersion) -> None:
        """Serve ``version`` at once."""
        self.switches = [(-math.inf, version.version)]

    async def generate(self, request: ActionRequest) -> Generation:
        """Answer by the configured behavior, with tokens spread evenly over the latency."""
        if request.recorded:
            request = msgspec.structs.replace(request, request_id=request.recorded.request_id)
        clock = asyncio.get_running_loop().time
        started = clock()
        self.in_flight += 1
        try:
            await self.pauses.work(self._duration_s(request.request_id))
        finally:
            self.in_flight -= 1
        with request_boundary():
            text = self.answer(request)
        own = [token_of(piece) for piece in PIECES.findall(text)]
        tokens = request.recorded.tokens or own if request.recorded else own
        logprobs, entropies = synthetic_distributions(request.request_id, len(tokens))
        for place in (place for place, token in enumerate(tokens) if own[place : place + 1] != [token]):
            logprobs[place] = math.log((1 - math.exp(logprobs[place])) / ALTERNATIVES)
        prompt = "\n".join(f"{t.role}: {t.text or (t.image.sha256 if t.image else '')}" for t in request.turns)
        return Generation(
            text=text,
            tokens=tokens,
            logprobs=logprobs,
            entropies=entropies,
            versions=version_spans(self.switches, started, clock(), len(tokens)),
            prompt_tokens=sum(len(PIECES.findall(turn.text or "")) for turn in request.turns),
            prompt_sha=hashlib.sha256(prompt.encode()).hexdigest(),
            prefill_ms=self.settings.latency_ms / max(1, len(tokens)),
        )

    async def load(self, version: WeightVersion) -> float:
        """Report ``version`` from now on, after the workload's pause if there is one."""
        paused_s = self.workload.clock_s(self.workload.switch_s) if self.workload else 0.0
        await self.pauses.pause(paused_s)
        self.switches.append((asyncio.get_running_loop().time(), version.version))
        return paused_s * 1000

    def _duration_s(self, request_id: str) -> float:
        """Return the duration of a response without pauses (seconds)."""
        if self.workload is None:
            return self.settings.latency_ms / 1000
        engine = self.workload.generation
        tokens = engine.tokens.draw(random.Random(f"{self.workload.seed} {request_id}"))
        return self.workload.clock_s(engine.takes_s(tokens, (self.in_flight - 1) / self.slots))

    def answer(self, request: ActionRequest) -> str:
        """Return the action text: a click in pixels of the newest image, resized as for the policy."""
        image = next((turn.image for turn in reversed(request.turns) if turn.image is not None), None)
        width, height = (max(image.width, 1), max(image.height, 1)) if image is not None else (1, 1)
        width, height = smart_resize(width, height, self.policy.min_pixels, self.policy.max_pixels)
        if self.settings.behaviour == "random":
            x, y = (
                int(hash_fraction("x", request.request_id) * width),
                int(hash_fraction("y", request.request_id) * height),
            )
        else:
            x, y = instructed_point(request) or (width // 2, height // 2)
            if hash_fraction("success", request.request_id) >= self.settings.success_rate:
                x, y = (x + width // 2) % width, (y + height // 2) % height
        return self.policy.dialect.build().write(actions.Click(x, y), View(width, height))


class Pauses:
    """Work that stops during pauses."""

    def __init__(self) -> None:
        self._paused_s = 0.0
        self._began_s = 0.0
        self._running = asyncio.Event()
        self._running.set()

    async def pause(self, seconds: float) -> None:
        """Stop all work for ``seconds``."""
        if seconds <= 0:
            return
        self._began_s = asyncio.get_running_loop().time()
        self._running.clear()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._paused_s = self._total_s()
            self._running.set()

    async def work(self, seconds: float) -> None:
        """Return after ``seconds`` of work, without pauses."""
        clock = asyncio.get_running_loop().time
        due = clock() + seconds - self._total_s()
        while (left_s := due + self._total_s() - clock()) > 0:
            if self._running.is_set():
                await asyncio.sleep(left_s)
            else:
                await self._running.wait()

    def _total_s(self) -> float:
        """Return the total time of pauses, the present one included."""
        present_s = 0.0 if self._running.is_set() else asyncio.get_running_loop().time() - self._began_s
        return self._paused_s + present_s


def instructed_point(request: ActionRequest) -> tuple[int, int] | None:
    """Return the point that the instruction names for this step (policy pixels), the last one for later steps."""
    instruction = next((turn.text for turn in request.turns if turn.role == "user" and turn.text), "")
    points = POINT.findall(instruction)
    if not points:
        return None
    x, y = points[min(request.step, len(points) - 1)]
    return int(x), int(y)


@functools.lru_cache(maxsize=4096)
def token_of(piece: str) -> int:
    """Return the synthetic token id of a piece of text."""
    return int(1 + hash_fraction("token", piece) * (VOCABULARY - 1))


def hash_fraction(*parts: str) -> float:
    """Return a number in [0, 1) derived from ``parts``."""
    digest = hashlib.sha256("\0".join(parts).encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def synthetic_distributions(seed: str, count: int) -> tuple[list[float], list[float]]:
    """Return ``count`` log-probabilities (p in 0.5 to 1) and entropies, nats; :data:`ALTERNATIVES` share 1 - p."""
    logprobs, entropies = [], []
    digest = hashlib.shake_128(seed.encode()).digest(4 * count)
    for (drawn,) in struct.iter_unpack("<I", digest):
        p = 1 - 0.5 * (0.002 + 0.99 * drawn / 2**32)
        rest = (1 - p) / ALTERNATIVES
        logp = math.log(p)
        logprobs.append(logp)
        entropies.append(-p * logp - (1 - p) * math.log(rest))
    return logprobs, entropies


def version_spans(switches: list[tuple[float, int]], started: float, ended: float, tokens: int) -> list[VersionSpan]:
    """Return the versions of ``tokens`` spread evenly over a time (s); ``switches`` are (time, version) in order."""
    switches = switches[-1:] if switches[-1][0] <= started else switches
    made_s = [started + (ended - started) * index / tokens for index in range(tokens)]
    starts = [bisect.bisect_left(made_s, switched_s) for switched_s, _ in switches]
    spans = zip(switches, starts, [*starts[1:], tokens], strict=True)
    return [VersionSpan(version=version, start=start, end=end) for (_, version), start, end in spans if start < end]
