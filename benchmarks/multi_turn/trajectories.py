"""Recorded trajectories of many steps, and the windows of the prompts that are compared on them. Torch-free."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from benchmarks.synthetic_groups import BacklogShape, Maker, SyntheticBacklog
from dart_streams.config import Config, Policy
from dart_streams.episodes import prompts
from topics.observations import Observation
from topics.values import MessagePart
from trainer.data.distinct import count_distinct
from trainer.data.samples import ReadyGroup, select

STEPS = 30
"""Steps of the longest trajectory."""
MIXED = (5, 8, 10, 12, 15, 20, 25, 30)
"""Steps of a batch of eight trajectories, where the longest has :data:`STEPS`."""
SCREEN = (616, 448)
"""Width and height of a screenshot (pixels): 352 tokens of Qwen2.5-VL."""
WINDOWS: dict[str, dict[str, int]] = {
    "sliding": {"max_images": 5, "max_texts": 4},
    "blocks": {"max_images": 7, "min_images": 3, "max_texts": 6, "min_texts": 2},
}
"""Bounds of ``[policy]``, with a mean of 5 screenshots, and one answer between each two of them."""


class TokenCounts(NamedTuple):
    """Tokens and screenshots of trajectories.

    ``prompted`` has the prompts of all steps, ``distinct`` each system message, screenshot and answer once. The same
    for screenshots ``shown`` and ``screens``.
    """

    prompted: int
    distinct: int
    shown: int
    screens: int


def scale_batches(steps: int) -> dict[str, Sequence[int]]:
    """Return the steps of the trajectories of each batch: one long trajectory alone, and one of mixed lengths."""
    return {"one": (steps,), "batch": [max(1, length * steps // STEPS) for length in MIXED]}


def window_policy(policy: Policy, window: str) -> Policy:
    """Return ``policy`` with the bounds of a window of :data:`WINDOWS`."""
    return msgspec.structs.replace(policy.sliding, **WINDOWS[window])


def record_group(config: Config, renderer: Any, lengths: Sequence[int], seed: int = 0) -> SyntheticBacklog:
    """Return a group whose members have these steps, and one first screenshot; answers are of version 0.

    ``config.policy`` has the window. ``renderer`` is a :class:`~dart_streams.policy.rendering.Renderer`.
    """
    shape = BacklogShape(len(lengths), max(lengths), *SCREEN, lengths=tuple(lengths))
    return Maker(config, renderer, shape).group(seed)


def ready_group(made: SyntheticBacklog, config: Config, renderer: Any) -> ReadyGroup:
    """Return a group as the trainer selects its samples; raise ValueError if it refuses any."""
    selected = select(made.group, made.group.members, made.observations, renderer, config.policy)
    if selected.refused:
        raise ValueError(f"{selected.refused}: {selected.example}")
    return ReadyGroup(
        group=made.group,
        samples=selected.samples,
        images=made.blobs,
        refused=Counter(),
        read_ms=0.0,
        distinct_tokens=count_distinct(selected.samples, made.observations, renderer, config.policy),
    )


def step_prompts(observations: Sequence[Observation], policy: Policy) -> list[list[MessagePart]]:
    """Return the prompt of each action of a trajectory."""
    return [prompts.prompt_turns(observations[:step], policy) for step in range(1, len(observations))]


def count_tokens(played: Iterable[Sequence[Observation]], policy: Policy, renderer: Any) -> TokenCounts:
    """Count the tokens of prompts, and those that differ: the first prompt, and what each step adds to it.

    Trajectories share screenshots and first prompts, so these count once.
    """
    seen: set[str] = set()
    everything = msgspec.structs.replace(policy.sliding, max_images=10_000, max_texts=10_000)
    prompted = distinct = shown = 0

    def length(turns: Sequence[MessagePart]) -> int:
        prompt = renderer.prompt(turns)
        return len(renderer.expanded(prompt.token_ids, [(ref.width, ref.height) for ref in prompt.images]))

    screens: set[str] = set()
    for observations in played:
        steps = step_prompts(observations, policy)
        prompted += sum(map(length, steps))
        images = [turn.image.sha256 for turns in steps for turn in turns if turn.image is not None]
        shown += len(images)
        screens.update(images)
        whole = step_prompts(observations, everything)
        first = renderer.prompt(whole[0]).sha
        distinct += length(whole[-1]) - (length(whole[0]) if first in seen else 0)
        seen.add(first)
    return TokenCounts(prompted, distinct, shown, len(screens))


def choose_cheapest(runs: Sequence[dict[str, Any]], cost: str) -> dict[str, Any]:
    """Return the figures of the run with the least ``cost`` for each batch."""
    return {batch: min((run[batch] for run in runs), key=lambda figures: figures[cost]) for batch in runs[0]}
