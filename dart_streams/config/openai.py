"""A model behind an OpenAI-compatible endpoint as the inference engine."""

from typing import Any
from urllib.parse import urlsplit

from msgspec import field

from dart_streams.config.connections import is_loopback, refuse_literal
from dart_streams.config.section import Optional

RESERVED = ("model", "messages", "n", "stream", "logprobs", "return_token_ids", "logit_bias")
"""Fields of a request's body that the engine itself decides."""
SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("length_penalty", "min_tokens", "ignore_eos", "stop", "stop_token_ids", "seed", "allowed_token_ids", "bad_words"),
    *("use_beam_search", "structured_outputs", "response_format", "truncate_prompt_tokens"),
)
"""Fields that change which tokens are drawn, and with which log-probabilities."""


class Openai(Optional, frozen=True):
    """The ``openai`` engine: a model behind an OpenAI-compatible endpoint. Its weights never change in a run."""

    base_url: str = ""
    """The endpoint's address up to and including its ``/v1``."""
    model: str = ""
    """The model's name at the endpoint."""
    api_key: str = ""
    """Where the key is: ``env:NAME`` or ``file:PATH``; empty: the endpoint asks for none."""
    trainable: bool = False
    """Ask for token ids and log-probabilities, and refuse to start without them. Only vLLM's server is known to give
    both; it must serve the model of ``policy.path``, whose tokenizer and chat template the trainer uses."""
    instructions: str = ""
    """What the system message adds, ``{width}`` and ``{height}`` being the newest screenshot's; empty: the actions in
    words with ``policy.dialect.name = "native"``, nothing with another dialect, whose prompt has its own. Not with
    ``trainable``, where the prompt is the trainer's."""
    demonstrate: bool = False
    """Play orders for demonstrations with the endpoint, not with the backend's oracle."""
    options: dict[str, str | int | float | bool | list[Any] | dict[str, Any]] = field(default_factory=dict)
    """Further fields of a request's body, such as ``reasoning_effort``, or ``chat_template_kwargs`` of vLLM's server.
    ``max_completion_tokens`` here takes the place of ``max_tokens``. With ``trainable`` none that changes which tokens
    are drawn."""

    def __post_init__(self) -> None:
        """Refuse a key in the configuration itself, or in the clear, and fields that the engine sets."""
        refuse_literal(self.api_key, "api_key")
        if self.base_url:
            parts = urlsplit(self.base_url)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
                raise ValueError(
                    "base_url must look like https://HOST/v1, without a user, a password or a query: a key belongs "
                    "into api_key, as env:NAME or file:PATH"
                )
            if self.api_key and parts.scheme == "http" and not is_loopback(parts.hostname):
                raise ValueError("api_key would travel in the clear: base_url must begin with https://")
        if self.trainable and self.instructions:
            raise ValueError(
                "instructions can't be used with trainable = true, whose prompt is the trainer's: leave one of them out"
            )
        if taken := sorted(set(RESERVED) & self.options.keys()):
            raise ValueError(f"options may not have {', '.join(taken)}: the engine sets them")
        if self.trainable and (biased := sorted(set(SAMPLING) & self.options.keys())):
            raise ValueError(
                f"options may not have {', '.join(biased)} with trainable = true: the trainer would take the tokens "
                "for drawn from the policy's own distribution"
            )
