"""Which answers an optimizer step imitates, and which trajectories are held out: the same after a restart. Pure."""

import itertools
from collections.abc import Iterator, Sequence

from dart_data.sft.episodes import EpisodeEntry
from dart_streams import stateless_random
from dart_streams.config import Policy
from dart_streams.config.sft import Sft
from dart_streams.episodes import prompts
from trainer.data.successes import RememberedSuccess

Batch = list[RememberedSuccess]


def split_heldout(episodes: Sequence[EpisodeEntry], share: float) -> tuple[list[EpisodeEntry], list[EpisodeEntry]]:
    """Return the trajectories to train on and the held-out ones, by a hash of their ids.

    At least one is held out unless ``share`` is 0, and at least one is trained on.
    """
    ordered = sorted(episodes, key=lambda entry: stateless_random.number("sft-heldout", entry.trajectory_id))
    count = min(max(1, round(share * len(ordered))), len(ordered) - 1) if share else 0
    return ordered[count:], ordered[:count]


def count_steps(episodes: Sequence[EpisodeEntry], settings: Sft) -> int:
    """Return the number of optimizer steps."""
    answers = sum(entry.steps for entry in episodes)
    return settings.steps or settings.epochs * -(-answers // settings.batch)


def plan_batches(episodes: Sequence[EpisodeEntry], settings: Sft, policy: Policy) -> Iterator[Batch]:
    """Yield the answers of each optimizer step, as steps of trajectories; the last step of an epoch may have fewer."""
    steps, most = 0, count_steps(episodes, settings)
    for epoch in itertools.count():
        answers = [(entry, step) for entry, run in shuffle_runs(episodes, policy, epoch) for step in run]
        for start in range(0, len(answers), settings.batch):
            if steps == most:
                return
            steps += 1
            yield merge_steps(answers[start : start + settings.batch])


def shuffle_runs(episodes: Sequence[EpisodeEntry], policy: Policy, epoch: int) -> list[tuple[EpisodeEntry, list[int]]]:
    """Return the runs of steps whose prompts extend each other, which are read in one pass, in an epoch's order."""
    runs = [
        (entry, window, list(run))
        for entry in episodes
        for window, run in itertools.groupby(
            range(entry.steps), key=lambda step: prompts.window_after(step + 1, policy)
        )
    ]
    runs.sort(key=lambda run: stateless_random.number("sft", epoch, run[0].trajectory_id, *run[1]))
    return [(entry, run) for entry, _, run in runs]


def merge_steps(answers: Sequence[tuple[EpisodeEntry, int]]) -> Batch:
    """Return answers by trajectory."""
    selected: dict[str, list[int]] = {}
    tasks: dict[str, str] = {}
    for entry, step in answers:
        tasks[entry.trajectory_id] = entry.task_id
        selected.setdefault(entry.trajectory_id, []).append(step)
    return [
        RememberedSuccess(trajectory_id=identity, task_id=tasks[identity], selected=sorted(steps))
        for identity, steps in selected.items()
    ]


def whole_episodes(episodes: Sequence[EpisodeEntry]) -> Batch:
    """Return all answers of trajectories."""
    return merge_steps([(entry, step) for entry in episodes for step in range(entry.steps)])
