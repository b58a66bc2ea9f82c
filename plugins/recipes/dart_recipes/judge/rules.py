"""A judge beside or in place of the environment's reward (arXiv 2404.06474; DigiRL, arXiv 2406.11896).

It is asked in :mod:`dart_recipes.judge.judging`.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from dart_streams.config.openai import Openai
from dart_streams.config.section import Optional
from dart_streams.curation.advantages import checked_reward
from dart_streams.curation.hooks import Own, Rules
from topics.trajectories import Trajectory


class Settings(Optional, frozen=True):
    """The keys of ``[recipes.judge]``."""

    base_url: str = ""
    """The address of the judge's OpenAI-compatible endpoint, with its ``/v1``; empty: nothing is judged."""
    model: str = ""
    """The judge's name there."""
    api_key: str = ""
    """The API key, as ``env:NAME`` or ``file:PATH``; empty: none."""
    reward: Literal["environment", "judge"] = "environment"
    """Whose reward counts. With ``judge``, a training rollout without a verdict is not trained on."""
    timeout_s: Annotated[float, Meta(gt=0, le=600)] = 60.0
    """Time for a verdict, retries included; then there is none."""
    max_tokens: Annotated[int, Meta(ge=1, le=65536)] = 512
    """Tokens of the judge's answer."""
    options: dict[str, str | int | float | bool | list[Any] | dict[str, Any]] = field(default_factory=dict)
    """Further fields of a request's body, as in ``rollout.openai.options``."""

    def __post_init__(self) -> None:
        """Refuse a literal or unencrypted key, a malformed address, and rewards of nobody."""
        self.endpoint()
        if self.reward == "judge" and not self.base_url:
            raise ValueError('reward = "judge" needs base_url and model, the endpoint of the judge')
        if self.base_url and not self.model:
            raise ValueError("model must name the judge at base_url")

    def endpoint(self) -> Openai:
        """Return the settings of the judge's endpoint."""
        return Openai(base_url=self.base_url, model=self.model, api_key=self.api_key, options=self.options)


def judged_reward(own: Own, trajectory: Trajectory) -> float | None:
    """Return the reward of a trajectory: the environment's, or for training rollouts the judge's.

    None without a reward, and without a verdict where the judge's counts.
    """
    reward = checked_reward(trajectory)
    if own.settings.reward == "environment" or reward is None or trajectory.purpose != "train":
        return reward
    if trajectory.verdict is None or trajectory.verdict.success is None:
        return None
    return float(trajectory.verdict.success)


RULES = Rules(reward=judged_reward)
