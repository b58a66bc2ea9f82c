"""The teacher: a vLLM server that returns its log-probabilities of given tokens, with their screenshots."""

import asyncio
import base64
import time
from collections.abc import Mapping
from typing import Any

import msgspec
import structlog

from dart_recipes.distillation.rules import Settings
from dart_streams.config.text import MALFORMED
from dart_streams.deadline import Deadline
from dart_streams.errors import ConfigError, UserError
from trainer.data.samples import TrainingSample
from trainer.data.scores import ScoreRequest
from workers.rollout.engine import EngineFault
from workers.rollout.openai_endpoint import ChatEndpoint, RequestRejected, pause_s

SECTION = "recipes.distillation"
PATH = "/inference/v1/generate"
"""vLLM's API of token ids, beside its ``/v1``: OpenAI's own cannot score given tokens."""
LOOK_S = 0.5
"""Interval of looks for a stop of the trainer."""
LOG_EVERY_S = 10.0

log = structlog.get_logger()


class UnusableTeacher(UserError):
    """The server answers, but not with log-probabilities of the answer's tokens; a retry does not help."""


class TokenScore(msgspec.Struct, frozen=True):
    """The log-probability of a token (nats)."""

    logprob: float


class Scored(msgspec.Struct, frozen=True):
    """A response: for each token of the prompt its log-probability by token id, null for the first."""

    prompt_logprobs: list[dict[str, TokenScore] | None] | None = None


def request_body(model: str, sample: TrainingSample, images: Mapping[str, bytes]) -> bytes:
    """Return the body that asks for the log-probabilities of a sample's prompt and answer."""
    fields: dict[str, Any] = {
        "model": model,
        "token_ids": [*sample.prompt, *sample.answer],
        "sampling_params": {"max_tokens": 1, "prompt_logprobs": 0, "detokenize": False},
    }
    if sample.images:
        fields["content_parts"] = [
            {
                "type": "image_url",
                "url": f"data:{ref.media_type};base64,{base64.b64encode(images[ref.sha256]).decode()}",
            }
            for ref in sample.images
        ]
    return msgspec.json.encode(fields)


def answer_logprobs(data: bytes, answer: list[int]) -> list[float]:
    """Return the log-probabilities of an answer's tokens, the last of the prompt (nats).

    Raises EngineFault for a response that is none, and :class:`UnusableTeacher` for one without these tokens.
    """
    try:
        found = msgspec.json.decode(data, type=Scored).prompt_logprobs
    except MALFORMED as error:
        raise EngineFault(f"its response is none of {PATH}: {error}") from None
    last = (found or [])[-len(answer) :]
    scores = [entry and entry.get(str(token)) for entry, token in zip(last, answer, strict=False)]
    if len(last) < len(answer) or not all(scores):
        raise UnusableTeacher(
            f"{SECTION}: the teacher's response lacks log-probabilities of the answer's tokens (prompt_logprobs): "
            "serve it with vLLM, and with the tokenizer of policy.path"
        )
    return [score.logprob for score in scores if score]


class Teacher:
    """Asks for scores until all are there, with one line in the log at a time about what it waits for."""

    def __init__(self, settings: Settings, request: ScoreRequest) -> None:
        if not settings.base_url or not settings.model:
            raise ConfigError(f"{SECTION}.base_url and {SECTION}.model must name the teacher")
        self.settings = settings
        self.request = request
        self.endpoint = ChatEndpoint(settings.endpoint(), settings.in_flight, SECTION)
        self.url = settings.base_url.rstrip("/").removesuffix("/v1") + PATH
        self.started_s = time.monotonic()
        self.logged_s: dict[str, float] = {}

    @property
    def waited_s(self) -> float:
        """Seconds since the first request."""
        return time.monotonic() - self.started_s

    async def score_all(self) -> list[list[float] | None]:
        """Return the teacher's log-probabilities of each answer of the policy; None for others, or once stopped."""
        places = [place for place, sample in enumerate(self.request.samples) if sample.logprobs is not None]
        scores: list[list[float] | None] = [None] * len(self.request.samples)
        room = asyncio.Semaphore(self.settings.in_flight)

        async def score(place: int) -> None:
            async with room:
                scores[place] = await self._score(self.request.samples[place])

        async with self.endpoint:
            pending = {asyncio.ensure_future(score(place)) for place in places}
            try:
                while pending and not self.request.stopped():
                    done, pending = await asyncio.wait(pending, timeout=LOOK_S, return_when=asyncio.FIRST_EXCEPTION)
                    for job in done:
                        job.result()
            finally:
                for job in pending:
                    job.cancel()
                await asyncio.gather(*pending, return_exceptions=True)
        return scores

    async def _score(self, sample: TrainingSample) -> list[float] | None:
        """Return the scores of a sample; None where they are not required and patience is over."""
        body = request_body(self.settings.model, sample, self.request.images)
        tried = 0
        while True:
            tried += 1
            try:
                data = await self.endpoint.post(self.url, body, Deadline(self.settings.timeout_s))
                return answer_logprobs(data, sample.answer)
            except RequestRejected as rejection:
                raise UnusableTeacher(
                    f"{SECTION}: the teacher rejects step {sample.step} of trajectory {sample.trajectory_id}: "
                    f"{rejection}. Serve it with the context and the images of the policy"
                ) from None
            except EngineFault as fault:
                if not self.settings.required and self.waited_s >= self.settings.patience_s:
                    self._note("trained without the teacher (recipes.distillation.required = false)", fault)
                    return None
                self._note("the teacher does not answer: the step waits", fault)
            await asyncio.sleep(pause_s(tried))

    def _note(self, event: str, fault: EngineFault) -> None:
        """Log an event, at most every :data:`LOG_EVERY_S` seconds."""
        if time.monotonic() - self.logged_s.get(event, -LOG_EVERY_S) >= LOG_EVERY_S:
            self.logged_s[event] = time.monotonic()
            group = self.request.samples[0].group_id
            log.warning(event, url=self.url, group=group, waited_s=round(self.waited_s, 1), reason=str(fault))


def ask_teacher(settings: Settings, request: ScoreRequest) -> list[list[float] | None]:
    """Return the teacher's log-probabilities of the policy's own answers (nats), None for others.

    Waits for a teacher that does not answer, until the trainer stops. Raises UserError for one that never will.
    """
    return asyncio.run(Teacher(settings, request).score_all())
