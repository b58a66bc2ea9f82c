"""Whether an endpoint draws tokens as the trainer's policy would: the probe of ``vllm``, scored by requests.

The trainer stores beside its first version what transformers makes of a fixed answer. Each of its tokens is scored by a
request of one token, with those before it as the beginning of the answer: only vLLM's server gives that.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import fsspec
import msgspec
import structlog

from dart_streams.config import Config
from dart_streams.policy import probe, weight_location, weights
from dart_streams.policy.rendering import Renderer
from topics.values import MessagePart, Sampling
from topics.weights import WeightVersion
from workers.rollout import openai_chat
from workers.rollout.engine import EngineFault
from workers.rollout.openai_chat import Completion

LEAST_COMPARED = 0.5
"""The share of tokens that must be compared: those whose beginning the server makes the same tokens of."""

Ask = Callable[[Sequence[MessagePart], Sampling, dict[str, Any]], Awaitable[Completion]]
"""Sends a prompt with further fields of the body, and returns the response."""

log = structlog.get_logger()


async def check(config: Config, version: WeightVersion, renderer: Renderer, ask: Ask) -> None:
    """Compare an endpoint's log-probabilities with those that the trainer stored beside ``version``.

    Raises ParityFault, with the likely reason, if they disagree; EngineFault if the endpoint gives none.
    """
    if version.version != 0 or not version.uri:
        log.info("parity not checked", version=version.version, reason="the endpoint serves the first version")
        return
    stored = await asyncio.to_thread(fetch, config, version)
    if stored is None:
        log.warning("parity not checked", version=0, reason=f"no {weights.PROBE} at {version.uri}")
        return
    probe.refuse_other_rendering(stored, renderer)
    scored = await asyncio.gather(*(score(stored, place, renderer, ask) for place in range(len(stored.tokens))))
    compared = {place: own for place, own in enumerate(scored) if own is not None}
    if len(compared) < LEAST_COMPARED * len(scored):
        raise EngineFault(
            f"only {len(compared)} of {len(scored)} tokens of the probe could be scored: does the server make other "
            "tokens of a text than policy.path does?"
        )
    trainers = msgspec.structs.replace(stored, logprobs=[stored.logprobs[place] for place in compared])
    found = probe.mean_mismatch(trainers, list(compared.values()))
    bound = config.rollout.vllm.parity_nats
    if not found <= bound:
        raise probe.ParityFault(
            f"the endpoint's log-probabilities differ from the trainer's, in {stored.dtype}, by {found:.3g} nats a "
            f"token (rollout.vllm.parity_nats is {bound:g}): does it serve the model of policy.path, with "
            "--logprobs-mode processed_logprobs and the pixels of [policy]? Half precision may need a larger bound"
        )
    log.info("parity checked", version=0, mismatch_nats=round(found, 6), tokens=len(compared))


def fetch(config: Config, version: WeightVersion) -> probe.Probe | None:
    """Return the probe stored beside a version; None if there is none, or it lies where nothing is read."""
    if weight_location.location_refusal(version.uri, weight_location.base_of(config)):
        return None
    filesystem, folder = fsspec.core.url_to_fs(version.uri)
    try:
        return msgspec.json.decode(filesystem.cat_file(f"{folder}/{weights.PROBE}"), type=probe.Probe)
    except FileNotFoundError:
        return None


async def score(stored: probe.Probe, place: int, renderer: Renderer, ask: Ask) -> float | None:
    """Return the log-probability (nats) of a token of the probe; None if the tokens before it come out otherwise."""
    before, token = stored.tokens[:place], stored.tokens[place]
    turns = probe.probe_turns()
    fields: dict[str, Any] = {"logprob_token_ids": [token], "return_tokens_as_token_ids": True}
    if before:
        turns.append(MessagePart(role="assistant", text=renderer.text(before)))
        fields |= {"continue_final_message": True, "add_generation_prompt": False}
    completion = await ask(turns, Sampling(max_tokens=1), fields)
    if completion.prompt_token_ids is None:
        raise EngineFault("the endpoint gives no token ids (return_token_ids)")
    if openai_chat.collapse_images(completion.prompt_token_ids, renderer.image_token) != [*stored.prompt, *before]:
        return None
    logprobs = completion.choices[0].logprobs
    entries = logprobs.content if logprobs is not None and logprobs.content else []
    of_token = {entry.token: entry.logprob for first in entries[:1] for entry in (first, *(first.top_logprobs or ()))}
    if f"token_id:{token}" not in of_token:
        raise EngineFault("the endpoint does not score a given token (logprob_token_ids)")
    return of_token[f"token_id:{token}"]
