"""A model behind an OpenAI-compatible endpoint as the inference engine."""

from typing import Any
from urllib.parse import urlsplit

from msgspec import field

from dart_streams.config.connections import is_loopback, refuse_literal
from dart_streams.config.section import Optional

RESERVED = ("model", "messages", "n", "stream", "logprobs", "return_token_ids", "logit_bias")
"""Fields of a request's body that the engine sets."""
SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("length_penalty", "min_tokens", "ignore_eos", "stop", "stop_token_ids", "seed", "allowed_token_ids", "bad_words"),
    *("use_beam_search", "structured_outputs", "response_format", "truncate_prompt_tokens"),
)
"""Fields that change the sampled distribution."""


class Openai(Optional, frozen=True):
    """The ``openai`` engine: a model behind an OpenAI-compatible endpoint, with fixed weights."""

    base_url: str = ""
    """The endpoint's address, with its ``/v1``."""
    model: str = ""
    """The model's name at the endpoint."""
    api_key: str = ""
    """The API key, as ``env:NAME`` or ``file:PATH``; empty: none."""
    trainable: bool = False
    """Require token ids and log-probabilities, as vLLM's server gives them. It must serve the model of ``policy.path``,
    whose tokenizer and chat template the trainer uses."""
    instructions: str = ""
    """Addition to the system message, with ``{width}`` and ``{height}`` of the newest screenshot; empty: a description
    of the actions with the ``native`` dialect, else nothing. Not with ``trainable``, which has the trainer's prompt."""
    demonstrate: bool = False
    """Play demonstrations with the endpoint, not with the backend's oracle."""
    options: dict[str, str | int | float | bool | list[Any] | dict[str, Any]] = field(default_factory=dict)
    """Further fields of a request's body, such as ``reasoning_effort``. ``max_completion_tokens`` replaces
    ``max_tokens``. With ``trainable``, no field may change the sampled distribution."""

    def __post_init__(self) -> None:
        """Refuse a literal or unencrypted key, and fields that the engine sets."""
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
