"""The ``openai`` engine: a model behind an OpenAI-compatible endpoint.

Its weights never change; its tokens count as version 0. Answers without token ids and log-probabilities are executed
and recorded but not trained on: the recorder marks their trajectories, and no group contains them.
"""

import asyncio
import base64
import contextlib
import io
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import structlog
from PIL import Image

from dart_streams import pictures
from dart_streams.actions import Wait
from dart_streams.actions.dialects import View
from dart_streams.config import Config
from dart_streams.deadline import Deadline
from dart_streams.episodes import prompts
from dart_streams.errors import ServiceUnavailable, UserError
from dart_streams.policy import recipe
from dart_streams.screens import smart_resize
from dart_streams.store import MissingBlob, open_store
from topics.action_requests import ActionRequest
from topics.values import BlobRef, MessagePart, Sampling, VersionSpan
from topics.weights import WeightVersion
from workers.rollout import openai_chat
from workers.rollout.engine import Engine, EngineFault, Generation, LoadFault, request_boundary
from workers.rollout.openai_endpoint import ChatEndpoint, RequestRejected

if TYPE_CHECKING:  # torch
    from dart_streams.policy.rendering import Prompt, Renderer

ReadBlob = Callable[[BlobRef], Awaitable[bytes]]
START_TIMEOUT_S = 60.0
"""Timeout of the endpoint's first response."""
FIRST = 0
"""Weight version of the endpoint's tokens."""
TRIAL_SIDE = 56
"""Side of the trial screens (pixels) if the environment's size is unknown."""

log = structlog.get_logger()


class OpenaiEngine(Engine):
    """Generates with the endpoint of ``rollout.openai``; ``read`` reads screenshots, by default from the store."""

    def __init__(self, config: Config, read: ReadBlob | None = None) -> None:
        self.config = config
        self.settings = config.rollout.openai
        self.read = read
        self.endpoint = ChatEndpoint(self.settings, config.rollout.max_in_flight)
        self.renderer: Renderer | None = None
        self.untrainable = 0
        self.explicit = True
        """Whether bodies have every sampling parameter; a trial answer shows if the endpoint rejects some."""
        self._resources = contextlib.AsyncExitStack()

    async def start(self, version: WeightVersion) -> None:
        """Ask the endpoint for a trial answer with images; raise ServiceUnavailable, or UserError if it is unusable."""
        if self.settings.trainable:
            from dart_streams.policy.rendering import renderer_of

            self.renderer = renderer_of(recipe.model_folder(self.config), self.config.policy)
        if self.read is None:
            self.read = (await open_store(self.config, self._resources)).get_blob
        await self._resources.enter_async_context(self.endpoint)
        await self._try_out()
        if self.renderer is not None:
            await self._check_parity(version, self.renderer)
        log.info("endpoint answers", url=self.endpoint.url, model=self.settings.model, version=version.version)

    async def generate(self, request: ActionRequest) -> Generation:
        """Answer a request; the caller's timeout also ends the call to the endpoint."""
        if request.recorded and request.recorded.tokens:
            raise EngineFault("an endpoint does not score recorded tokens: only answers at temperature 0 are compared")
        started, deadline = time.perf_counter(), Deadline(self.config.env.request_timeout_s)
        refs = {turn.image.sha256: turn.image for turn in request.turns if turn.image is not None}
        assert self.read is not None
        try:
            blobs = dict(zip(refs, await asyncio.gather(*map(self.read, refs.values())), strict=True))
        except MissingBlob as error:
            raise EngineFault(str(error)) from None
        fetch_ms = (time.perf_counter() - started) * 1000
        with request_boundary():
            generation = await self._ask(request.turns, blobs, request.sampling, deadline)
        return msgspec.structs.replace(generation, fetch_ms=fetch_ms)

    async def load(self, version: WeightVersion) -> float:
        """Raise LoadFault: an endpoint loads no weights."""
        raise LoadFault(f"version {version.version} is not loaded: the weights of rollout.engine openai never change")

    async def stop(self) -> None:
        """Close the connections."""
        await self._resources.aclose()

    async def _try_out(self) -> None:
        """Generate once with the largest prompt, to find missing features and limits of the endpoint."""
        policy, size = self.config.policy, self.config.env.screen or (TRIAL_SIDE, TRIAL_SIDE)
        screen = io.BytesIO()
        Image.new("RGB", size, "white").save(screen, "PNG")
        wait = policy.dialect.build().write(Wait(), View(*size))
        turns = prompts.longest_prompt("Wait.", size, policy.max_images, policy, wait)
        blobs = {turn.image.sha256: screen.getvalue() for turn in turns if turn.image is not None}
        sampling = self.config.sampling()
        try:
            generation = await self._ask_as_it_takes(turns, blobs, sampling)
        except EngineFault as fault:
            raise ServiceUnavailable(f"rollout.openai: {fault}") from None
        context = await self.endpoint.context(Deadline(START_TIMEOUT_S))
        if context is not None and (needed := generation.prompt_tokens + sampling.max_tokens) > context:
            raise UserError(
                f"a prompt with {policy.max_images} screens and its answer need {needed:,} tokens, but the context at "
                f"{self.endpoint.url} has {context:,}: set smaller policy.max_images, policy.max_pixels or "
                "policy.max_tokens, or serve a larger context"
            )
        if self.settings.trainable and not generation.tokens:
            raise UserError(
                "rollout.openai.trainable = true, but the endpoint's first answer cannot be trained on (the log says "
                "why): serve policy.path with vLLM's server, or set rollout.openai.trainable = false and run.minutes = "
                "0 to evaluate it or to collect demonstrations"
            )

    async def _check_parity(self, version: WeightVersion, renderer: "Renderer") -> None:
        """Compare the endpoint with the trainer's first version; raise UserError if they disagree."""
        from dart_streams.policy import probe
        from workers.rollout import openai_parity

        screen = await asyncio.to_thread(probe.draw_screen)

        async def ask(
            turns: Sequence[MessagePart], sampling: Sampling, fields: dict[str, Any]
        ) -> openai_chat.Completion:
            blobs = {turn.image.sha256: screen for turn in turns if turn.image is not None}
            images = await self._images(blobs)
            messages = openai_chat.chat_messages(turns, {sha256: url for sha256, (url, _) in images.items()})
            body = openai_chat.request_body(self.settings, messages, sampling, renderer.banned_tokens, **fields)
            return await self.endpoint.complete(body, Deadline(START_TIMEOUT_S))

        try:
            await openai_parity.check(self.config, version, renderer, ask)
        except EngineFault as fault:
            raise ServiceUnavailable(f"rollout.openai: {fault}") from None

    async def _ask_as_it_takes(
        self, turns: Sequence[MessagePart], blobs: dict[str, bytes], sampling: Sampling
    ) -> Generation:
        """Ask with every sampling parameter, and unless trainable again with the common ones if some are rejected."""
        within_s = max(START_TIMEOUT_S, self.config.env.request_timeout_s)
        try:
            return await self._ask(turns, blobs, sampling, Deadline(within_s))
        except RequestRejected as rejection:
            if self.settings.trainable:
                raise
            self.explicit = False
            generation = await self._ask(turns, blobs, sampling, Deadline(within_s))
            log.warning(
                "endpoint rejects sampling parameters",
                left_out=sorted(openai_chat.NEUTRAL),
                reason=str(rejection),
                effect="its own defaults apply; hosted models sample neutrally",
            )
            return generation

    async def _ask(
        self, turns: Sequence[MessagePart], blobs: dict[str, bytes], sampling: Sampling, deadline: Deadline
    ) -> Generation:
        """Return the answer to a prompt whose images are in ``blobs``."""
        images = await self._images(blobs)
        urls = {sha256: url for sha256, (url, _) in images.items()}
        prompt, banned = None, list[int]()
        if self.renderer is not None:
            prompt, banned = self.renderer.prompt(turns), self.renderer.banned_tokens
        else:
            newest = next((turn.image for turn in reversed(turns) if turn.image is not None), None)
            width, height = images[newest.sha256][1] if newest is not None else (0, 0)
            dialect = self.config.policy.dialect.name
            turns = openai_chat.add_instructions(turns, self.settings.instructions, dialect, width, height)
        messages = openai_chat.chat_messages(turns, urls)
        body = openai_chat.request_body(self.settings, messages, sampling, banned, explicit=self.explicit)
        completion = await self.endpoint.complete(body, deadline)
        return self._generation(completion, prompt, openai_chat.most_tokens(self.settings, sampling))

    async def _images(self, blobs: dict[str, bytes]) -> dict[str, tuple[str, tuple[int, int]]]:
        """Return images as data URLs with their sizes in pixels."""
        return {sha256: await asyncio.to_thread(self._encoded, data) for sha256, data in blobs.items()}

    def _encoded(self, data: bytes) -> tuple[str, tuple[int, int]]:
        """Return an image as a data URL, and its size (pixels), scaled for the policy unless the endpoint does that."""
        policy = self.config.policy
        try:
            with pictures.open_picture(data) as image:
                size, media_type = image.size, Image.MIME.get(image.format or "", "image/png")
                wanted = smart_resize(*size, policy.min_pixels, policy.max_pixels)
                if self.renderer is None and wanted != size:
                    stream = io.BytesIO()
                    image.convert("RGB").resize(wanted, Image.Resampling.BICUBIC).save(stream, "PNG")
                    data, size, media_type = stream.getvalue(), wanted, "image/png"
        except pictures.UnusablePicture as error:
            raise EngineFault(f"a screenshot of the prompt is not a usable image: {error}") from None
        return f"data:{media_type};base64,{base64.b64encode(data).decode()}", size

    def _generation(self, completion: openai_chat.Completion, prompt: "Prompt | None", most_tokens: int) -> Generation:
        """Return a response with tokens and their text if trainable, otherwise with the endpoint's text alone."""
        counted = completion.usage.prompt_tokens if completion.usage else 0
        fields: dict[str, Any] = {"entropies": [], "prompt_tokens": max(0, min(counted, 2**31 - 1))}
        if prompt is not None and self.renderer is not None:
            sampled = openai_chat.sampled_tokens(completion, self.renderer.image_token)
            if not isinstance(sampled, str) and sampled.prompt != prompt.token_ids:
                sampled = "the endpoint tokenizes the prompt differently from the trainer"
            if not isinstance(sampled, str):
                openai_chat.refuse_faults(completion, most_tokens)
                return Generation(
                    **fields,
                    text=self.renderer.text(sampled.tokens),
                    tokens=sampled.tokens,
                    logprobs=sampled.logprobs,
                    versions=[VersionSpan(version=FIRST, start=0, end=len(sampled.tokens))],
                    prompt_sha=prompt.sha,
                )
            self._note_untrainable(sampled)
        text = openai_chat.text_of(completion, most_tokens)
        return Generation(**fields, text=text, tokens=[], logprobs=[], versions=[], prompt_sha="")

    def _note_untrainable(self, reason: str) -> None:
        """Count an untrainable answer; log the first and every hundredth."""
        if self.untrainable % 100 == 0:
            log.warning("answers cannot be trained on", reason=reason, before=self.untrainable)
        self.untrainable += 1
