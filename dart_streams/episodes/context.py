"""Checks whether a model's context has room for a configuration's longest prompt and answer. Pure.

Tokens are estimated from ``config.json``; the model environment counts them with the processor.
"""

import json
import math
from pathlib import Path
from typing import Any

import msgspec

from dart_streams.actions.offered import RETURNED_CHARACTERS
from dart_streams.config import Config, Policy, tasks
from dart_streams.episodes import prompts
from dart_streams.errors import ConfigError
from dart_streams.screens import smart_resize

INSTRUCTION_TOKENS = 64
"""Tokens reserved for a task's instruction."""
CHARACTERS = 5
"""Maximum mean characters of a token, so that the estimate never refuses a prompt that fits."""


class LongestPrompt(msgspec.Struct, frozen=True):
    """Tokens of the longest prompt: ``images`` screens, earlier ``answers``, and other words."""

    images: int
    image: int
    answers: int
    answer: int
    words: int

    @property
    def prompt(self) -> int:
        """Tokens of the prompt."""
        return self.images * self.image + self.answers * self.answer + self.words

    def refusal(self, context: int) -> str:
        """Return the reason that prompt and answer exceed a ``context`` of tokens; empty if they fit."""
        if self.prompt + self.answer <= context:
            return ""
        return (
            f"the longest prompt of the configuration has {self.prompt:,} tokens ({self.images} screens of "
            f"{self.image:,}, {self.answers} earlier answers of {self.answer:,}, {self.words:,} of words) and its "
            f"answer {self.answer:,}, but the model's context {context:,}: set smaller policy.max_images, "
            "policy.max_pixels, policy.max_texts or policy.max_tokens"
        )


def most_steps(config: Config) -> int:
    """Return the maximum steps of an episode; without a task file, as many as a prompt has earlier answers."""
    try:
        steps = tasks.load(Path(config.tasks.file)).most_steps
    except ConfigError:
        steps = 0
    return steps or config.policy.max_texts + 1


def largest_screen(config: Config) -> tuple[int, int]:
    """Return width and height (pixels) of the largest screen: a square if only its bound is known."""
    side = math.isqrt(config.policy.max_pixels)
    return config.env.screen or (side, side)


def shown_counts(policy: Policy, steps: int) -> tuple[int, int]:
    """Return the screens and earlier answers in the longest prompt of episodes of ``steps`` steps."""
    return min(policy.max_images, steps), min(policy.max_texts, steps - 1)


def estimate_longest(pixels_per_token: int, config: Config, steps: int) -> LongestPrompt:
    """Return the estimated longest prompt; ``pixels_per_token`` is 0 if unknown."""
    policy, (width, height) = config.policy, largest_screen(config)
    seen = smart_resize(width, height, policy.min_pixels, policy.max_pixels)
    turns = prompts.longest_prompt("", (width, height), 1, policy)
    images, answers = shown_counts(policy, steps)
    return LongestPrompt(
        images=images,
        image=math.prod(seen) // pixels_per_token if pixels_per_token else 0,
        answers=answers,
        answer=policy.max_tokens,
        words=sum(len(turn.text or "") for turn in turns) // CHARACTERS + reserved_tokens(config, answers),
    )


def reserved_tokens(config: Config, answers: int) -> int:
    """Return the tokens of the instruction, and of what calls returned beside earlier ``answers``."""
    returned = answers * RETURNED_CHARACTERS // CHARACTERS if config.env.offers_calls else 0
    return INSTRUCTION_TOKENS + returned


def context_refusal(folder: Path, config: Config, steps: int) -> str:
    """Return the reason that prompts of ``steps`` steps exceed the model in ``folder``; empty if they may fit."""
    try:
        model = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    if not isinstance(model, dict) or not (context := context_of(model)):
        return ""
    return estimate_longest(pixels_per_token(model), config, steps).refusal(context)


EXTENDED = {"su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"}
"""Kinds of scaling whose models state the extended context; others multiply it by their factor, as in vLLM."""


def context_of(model: dict[str, Any]) -> int:
    """Return a model's context (tokens) from its config.json; 0 if unknown."""
    text = model.get("text_config") or model
    context = text.get("max_position_embeddings") or model.get("max_position_embeddings")
    scaling = text.get("rope_parameters") or text.get("rope_scaling")
    scaling = scaling if isinstance(scaling, dict) and "gemma3" not in str(text.get("model_type")) else {}
    factor = None if (scaling.get("rope_type") or scaling.get("type")) in EXTENDED else scaling.get("factor")
    return int(context * max(1.0, factor or 1.0)) if isinstance(context, int) else 0


def pixels_per_token(model: dict[str, Any]) -> int:
    """Return the pixels of an image token from a model's config.json; 0 if unknown."""
    vision = model.get("vision_config") or {}
    patch, merge = vision.get("patch_size"), vision.get("spatial_merge_size")
    return (patch * merge) ** 2 if isinstance(patch, int) and isinstance(merge, int) else 0
