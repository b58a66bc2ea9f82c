"""On-policy distillation: a larger model scores the policy's own tokens (arXiv 2306.13649; Thinking Machines, 2025).

The teacher and the term of the loss are in :mod:`dart_recipes.distillation.training`.
"""

from collections.abc import Sequence

from dart_streams.config.openai import Openai
from dart_streams.config.section import AboveZero, NonNegative, Optional, Positive
from dart_streams.curation.hooks import Own, Rules
from dart_streams.curation.members import GroupMember


class Settings(Optional, frozen=True):
    """The keys of ``[recipes.distillation]``."""

    base_url: str = ""
    """The address of the teacher's vLLM server, with its ``/v1``."""
    model: str = ""
    """The teacher's name there. It has the tokenizer and the image processor of ``policy.path``."""
    api_key: str = ""
    """The API key, as ``env:NAME`` or ``file:PATH``; empty: none."""
    weight: NonNegative = 1.0
    """Weight of the reverse KL beside the advantages (beta)."""
    bound: AboveZero = 5.0
    """Bound of a token's log-probability ratio to the teacher (nats)."""
    in_flight: Positive = 16
    """Requests to the teacher at a time, for each trainer process."""
    timeout_s: AboveZero = 60.0
    """Timeout of a request; it is then sent again."""
    required: bool = True
    """Wait for a teacher that does not answer. If false, steps are trained on without it after ``patience_s``."""
    patience_s: AboveZero = 300.0
    """Wait for a group's scores without ``required`` (seconds)."""

    def __post_init__(self) -> None:
        """Refuse a literal or unencrypted key, and a malformed address."""
        self.endpoint()

    def endpoint(self) -> Openai:
        """Return the settings of the teacher's endpoint."""
        return Openai(base_url=self.base_url, model=self.model, api_key=self.api_key)


def keep_all(own: Own, members: Sequence[GroupMember], rewards: Sequence[float]) -> bool:
    """Return True: the teacher's scores teach also where all rewards are equal."""
    return True


RULES = Rules(keep_group=keep_all)
