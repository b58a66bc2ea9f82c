"""The longest prompt of a configuration, counted with the model's own processor and chat template."""

from dart_streams.config import Config
from dart_streams.episodes import context, prompts
from dart_streams.episodes.context import INSTRUCTION_TOKENS, LongestPrompt
from dart_streams.policy.rendering import Renderer


def count_longest(renderer: Renderer, config: Config, steps: int) -> LongestPrompt:
    """Return the longest prompt of episodes of ``steps`` steps."""
    policy, size = config.policy, context.largest_screen(config)
    _, answers = context.shown_counts(policy, steps)
    prompt = renderer.prompt(prompts.longest_prompt("", size, steps, policy))
    image = len(renderer.expansion(*size))
    return LongestPrompt(
        images=len(prompt.images),
        image=image,
        answers=answers,
        answer=policy.max_tokens,
        words=len(prompt.token_ids) - len(prompt.images) + INSTRUCTION_TOKENS,
    )
