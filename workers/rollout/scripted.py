"""An engine without a model: it answers from the instruction's words, or at random, after a fixed latency.

What it answers depends on the request alone, so that a run can be repeated. Its log-probabilities and entropies are
those of one consistent, made-up distribution a token.

With a ``[workload]`` in the configuration an answer takes as long as the workload's engine would, by the tokens drawn
for it and by how many other requests are under way, and a switch of weights stops generation for a while.
"""

import asyncio
import functools
import hashlib
import math
import random
import re
import struct
import time

from dart_streams import actions
from dart_streams.config import Config, Policy
from dart_streams.screens import smart_resize
from topics.action_requests import ActionRequest
from topics.values import MessagePart, VersionSpan
from topics.weights import WeightVersion
from workers.rollout.engine import Generation

VOCABULARY = 1024
"""Ids of the made-up tokens are below this."""
ALTERNATIVES = 15
"""A made-up distribution shares what the drawn token leaves over so many other tokens."""

POINT = re.compile(r"\((\d+),\s*(\d+)\)")
PIECES = re.compile(r"\d|[A-Za-z]+|\s+|[^\w\s]|_")


class ScriptedEngine:
    """Answers after ``latency_ms``, or as the workload says; a switch of weights changes the version it reports."""

    def __init__(self, config: Config) -> None:
        self.settings = config.rollout.scripted
        self.workload = config.workload
        self.places = config.rollout.max_in_flight
        self.policy = config.policy
        self.switches: list[tuple[float, int]] = []
        self.under_way = 0
        self.pauses = Pauses()

    async def start(self, version: WeightVersion) -> None:
        """Serve ``version`` at once."""
        self.switches = [(-math.inf, version.version)]

    async def generate(self, request: ActionRequest) -> Generation:
        """Answer by the configured behaviour; the tokens are spread evenly over the latency."""
        started = time.monotonic()
        self.under_way += 1
        try:
            await self.pauses.work(self._takes_s(request.request_id))
        finally:
            self.under_way -= 1
        text = self.answer(request)
        pieces = PIECES.findall(text)
        logprobs, entropies = distributions(request.request_id, len(pieces))
        prompt = prompt_text(request.turns)
        return Generation(
            text=text,
            tokens=[token_of(piece) for piece in pieces],
            logprobs=logprobs,
            entropies=entropies,
            versions=segments(self.switches, started, time.monotonic(), len(pieces)),
            prompt_tokens=sum(pieces_in(turn.text or "") for turn in request.turns),
            prompt_sha=hashlib.sha256(prompt.encode()).hexdigest(),
            prefill_ms=self.settings.latency_ms / max(1, len(pieces)),
        )

    async def load(self, version: WeightVersion) -> float:
        """Report ``version`` from now on; with a workload, after the pause that a switch takes."""
        paused_s = self.workload.clock_s(self.workload.switch_s) if self.workload else 0.0
        await self.pauses.pause(paused_s)
        self.switches.append((time.monotonic(), version.version))
        return paused_s * 1000

    def _takes_s(self, request_id: str) -> float:
        """Return how long an answer takes (seconds) if nothing pauses it."""
        if self.workload is None:
            return self.settings.latency_ms / 1000
        engine = self.workload.generation
        tokens = engine.tokens.draw(random.Random(f"{self.workload.seed} {request_id}"))
        return self.workload.clock_s(engine.takes_s(tokens, (self.under_way - 1) / self.places))

    async def check(self) -> None:
        """Nothing here can die."""

    async def stop(self) -> None:
        """Nothing to free."""

    def answer(self, request: ActionRequest) -> str:
        """Return the action text for ``request``."""
        width, height = seen_size(request.turns, self.policy)
        if self.settings.behaviour == "random":
            return click(
                int(fraction("x", request.request_id) * width), int(fraction("y", request.request_id) * height)
            )
        x, y = target(request) or (width // 2, height // 2)
        if fraction("success", request.request_id) >= self.settings.success_rate:
            x, y = (x + width // 2) % width, (y + height // 2) % height
        return click(x, y)


class Pauses:
    """Work that stands still while a pause lasts."""

    def __init__(self) -> None:
        self._paused_s = 0.0
        self._began_s = 0.0
        self._running = asyncio.Event()
        self._running.set()

    async def pause(self, seconds: float) -> None:
        """Stop all work for so long; at 0, not at all."""
        if seconds <= 0:
            return
        self._began_s = asyncio.get_running_loop().time()
        self._running.clear()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._paused_s = self._paused_so_far_s()
            self._running.set()

    async def work(self, seconds: float) -> None:
        """Return after so many seconds of work: what of them was paused is added."""
        clock = asyncio.get_running_loop().time
        due = clock() + seconds - self._paused_so_far_s()
        while (left_s := due + self._paused_so_far_s() - clock()) > 0:
            if self._running.is_set():
                await asyncio.sleep(left_s)
            else:
                await self._running.wait()

    def _paused_so_far_s(self) -> float:
        """Return how long work has stood still in all, the pause under way included."""
        under_way_s = 0.0 if self._running.is_set() else asyncio.get_running_loop().time() - self._began_s
        return self._paused_s + under_way_s


def click(x: int, y: int) -> str:
    """Return the canonical text of a click."""
    return actions.format(actions.Click(x, y))


def target(request: ActionRequest) -> tuple[int, int] | None:
    """Return the point, in policy-image pixels, that the instruction names for this step; None if it names none.

    Where it names several, they are for one step each and the last is for all later ones.
    """
    instruction = next((turn.text for turn in request.turns if turn.role == "user" and turn.text), "")
    points = POINT.findall(instruction)
    if not points:
        return None
    x, y = points[min(request.step, len(points) - 1)]
    return int(x), int(y)


def seen_size(turns: list[MessagePart], policy: Policy) -> tuple[int, int]:
    """Return (width, height) of the newest image as the policy sees it, in pixels."""
    image = next((turn.image for turn in reversed(turns) if turn.image is not None), None)
    width, height = (image.width, image.height) if image is not None else (0, 0)
    return smart_resize(max(width, 1), max(height, 1), policy.min_pixels, policy.max_pixels)


def prompt_text(turns: list[MessagePart]) -> str:
    """Return the prompt in words; an image stands as its digest."""
    return "\n".join(f"{turn.role}: {turn.text or (turn.image.sha256 if turn.image else '')}" for turn in turns)


@functools.lru_cache(maxsize=4096)
def token_of(piece: str) -> int:
    """Return the made-up token of a piece of text."""
    return int(1 + fraction("token", piece) * (VOCABULARY - 1))


@functools.lru_cache(maxsize=4096)
def pieces_in(text: str) -> int:
    """Return how many tokens a text of the prompt has."""
    return len(PIECES.findall(text))


def fraction(*parts: str) -> float:
    """Return a number in [0, 1) that depends on nothing but ``parts``."""
    digest = hashlib.sha256("\0".join(parts).encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def distributions(seed: str, count: int) -> tuple[list[float], list[float]]:
    """Return ``count`` log-probabilities and entropies (nats).

    The drawn token has probability p in (0.5, 1); the rest is shared evenly by :data:`ALTERNATIVES` others.
    """
    logprobs, entropies = [], []
    digest = hashlib.shake_128(seed.encode()).digest(4 * count)
    for (drawn,) in struct.iter_unpack("<I", digest):
        p = 1 - 0.5 * (0.002 + 0.99 * drawn / 2**32)
        rest = (1 - p) / ALTERNATIVES
        logp = math.log(p)
        logprobs.append(logp)
        entropies.append(-p * logp - (1 - p) * math.log(rest))
    return logprobs, entropies


def segments(switches: list[tuple[float, int]], started: float, ended: float, tokens: int) -> list[VersionSpan]:
    """Return which version made which of ``tokens`` tokens, spread evenly between two times (seconds).

    ``switches`` are (time, version), in order of time, the first before ``started``.
    """
    newest_s, newest = switches[-1]
    if newest_s <= started and tokens:
        return [VersionSpan(version=newest, start=0, end=tokens)]
    result: list[VersionSpan] = []
    for index in range(tokens):
        made = started + (ended - started) * index / tokens
        version = [version for at, version in switches if at <= made][-1]
        if result and result[-1].version == version:
            result[-1] = VersionSpan(version=version, start=result[-1].start, end=index + 1)
        else:
            result.append(VersionSpan(version=version, start=index, end=index + 1))
    return result
