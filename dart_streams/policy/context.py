"""The longest prompt of a configuration, counted with the model's own processor and chat template."""

from dart_streams.config import Config
from dart_streams.episodes import context, prompts
from dart_streams.episodes.context import INSTRUCTION_TOKENS, Longest
from dart_streams.policy.rendering import Renderer


def counted(renderer: Renderer, config: Config, steps: int) -> Longest:
    """Return the longest prompt of episodes of ``steps`` steps."""
    policy, size = config.policy, context.largest_screen(config)
    _, answers = context.shown(policy, steps)
    prompt = renderer.prompt(prompts.longest("", size, steps, policy))
    image = len(renderer.expansion(*size))
    return Longest(
        images=len(prompt.images),
        image=image,
        answers=answers,
        answer=policy.max_tokens,
        words=len(prompt.token_ids) - len(prompt.images) + INSTRUCTION_TOKENS,
    )
