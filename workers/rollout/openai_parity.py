"""Parity check of an endpoint: the ``vllm`` probe, each token scored by a one-token request (vLLM's server only)."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import structlog

from dart_streams.config import Config
from dart_streams.file_storage import open_storage
from dart_streams.policy import probe, weight_location, weights
from dart_streams.policy.rendering import Renderer
from topics.values import MessagePart, Sampling
from topics.weights import WeightVersion
from workers.rollout import openai_chat
from workers.rollout.engine import EngineFault
from workers.rollout.openai_chat import Completion

LEAST_COMPARED = 0.5
"""Minimum share of compared tokens; a token compares if the server tokenizes its prefix alike."""

Ask = Callable[[Sequence[MessagePart], Sampling, dict[str, Any]], Awaitable[Completion]]
"""Sends a prompt with further body fields; returns the response."""

log = structlog.get_logger()


async def check(config: Config, version: WeightVersion, renderer: Renderer, ask: Ask) -> None:
    """Compare log-probabilities with those stored beside ``version``; raise ParityFault, EngineFault without any."""
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
            f"only {len(compared)} of {len(scored)} tokens of the probe could be scored: check that the server has the "
            "tokenizer of policy.path"
        )
    trainers = msgspec.structs.replace(stored, logprobs=[stored.logprobs[place] for place in compared])
    mismatch = probe.mean_mismatch(trainers, list(compared.values()))
    bound = config.rollout.vllm.parity_nats
    if not mismatch <= bound:
        raise probe.ParityFault(
            f"the endpoint's log-probabilities differ from the trainer's, in {stored.dtype}, by {mismatch:.3g} nats a "
            f"token (rollout.vllm.parity_nats is {bound:g}): check that it serves the model of policy.path, with "
            "--logprobs-mode processed_logprobs and the pixels of [policy]. Half precision may need a larger bound"
        )
    log.info("parity checked", version=0, mismatch_nats=round(mismatch, 6), tokens=len(compared))


def fetch(config: Config, version: WeightVersion) -> probe.Probe | None:
    """Return the probe stored beside a version; None if it is missing or outside the configured location."""
    if weight_location.location_refusal(version.uri, weight_location.base_of(config)):
        return None
    storage = open_storage(version.uri)
    try:
        return msgspec.json.decode(storage.filesystem.cat_file(f"{storage.folder}/{weights.PROBE}"), type=probe.Probe)
    except FileNotFoundError:
        return None


async def score(stored: probe.Probe, place: int, renderer: Renderer, ask: Ask) -> float | None:
    """Return a probe token's log-probability (nats); None if its prefix is tokenized differently."""
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
