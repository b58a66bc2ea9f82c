"""Distinct tokens of samples: what the model would read if each screenshot and each answer were read once.

Tokens read over distinct tokens is the cost of history. A window that slides makes it about five at 30 steps.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from dart_streams.config import Policy
from dart_streams.episodes import prompts
from dart_streams.episodes.prompts import Window
from topics.observations import Observation
from trainer.data.samples import TrainingSample

if TYPE_CHECKING:  # torch
    from dart_streams.policy.rendering import Prompt, Renderer


def count_distinct(
    samples: Sequence[TrainingSample], steps: Mapping[str, Sequence[Observation]], renderer: "Renderer", policy: Policy
) -> int:
    """Return the distinct tokens of a group's samples; trajectories that begin alike count that once."""
    of_trajectory: defaultdict[str, list[TrainingSample]] = defaultdict(list)
    for item in sorted(samples, key=lambda item: item.step):
        of_trajectory[item.trajectory_id].append(item)
    images = {ref.sha256: ref for item in samples for ref in item.images if ref.width}
    total = sum(len(renderer.expansion(ref.width, ref.height)) for ref in images.values())
    starts: dict[str, int] = {}
    for trajectory_id, own in of_trajectory.items():
        observations = steps[trajectory_id]
        start = renderer.prompt(prompts.prompt_turns(observations[:1], policy))
        starts[start.sha] = own_tokens(start)
        for window, last in runs_of(own):
            whole = renderer.prompt(prompts.prompt_turns(observations[: last.step + 1], policy, window))
            total += own_tokens(whole) - own_tokens(start) + len(last.answer)
    return total + sum(starts.values())


def own_tokens(prompt: "Prompt") -> int:
    """Return a prompt's number of tokens without its screenshots."""
    return len(prompt.token_ids) - len(prompt.images)


def runs_of(samples: Iterable[TrainingSample]) -> list[tuple[Window, TrainingSample]]:
    """Return a trajectory's runs of steps that its samples, in order, show together: first shown, last sample."""
    runs: list[tuple[Window, TrainingSample]] = []
    for item in samples:
        if runs and item.window.first_text <= runs[-1][1].step + 1:
            first = Window(*map(min, runs[-1][0], item.window))
            runs[-1] = (first, item)
        else:
            runs.append((item.window, item))
    return runs
