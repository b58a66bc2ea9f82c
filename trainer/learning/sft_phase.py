"""Supervised phases of reinforcement learning: when one is due, and what it imitates. Pure.

After some steps of reinforcement learning, Entropulse (ComputerRL, arXiv 2508.14040) fine-tunes the policy on a varied
choice of its own past successes, drawn from the whole history, and resumes. Here a phase belongs to the step that makes
it due, and makes no version of its own: the staleness bound counts ``trainer.groups_per_step`` groups a version.
"""

import itertools
from collections import defaultdict
from collections.abc import Sequence

from dart_streams import stateless_random
from dart_streams.config import Entropulse
from topics.curated import CuratedGroup
from trainer.data.successes import RememberedSuccess, SuccessMemory, sft_group


def is_due(memory: SuccessMemory, settings: Entropulse) -> bool:
    """Return whether the next step ends with a supervised phase: each ``every``-th does, if there is any success."""
    return 0 < settings.every <= memory.steps + 1 and bool(memory.history)


def sft_groups(history: Sequence[RememberedSuccess], settings: Entropulse, train_step: int) -> list[CuratedGroup]:
    """Return what the phase of ``train_step`` imitates: a group an update, each trajectory at most once.

    Tasks take turns, in an order drawn for this phase, so that none fills an update while another has a success left.
    With fewer successes than asked for, there are fewer updates.
    """
    of_tasks: defaultdict[str, list[RememberedSuccess]] = defaultdict(list)
    for success in history:
        of_tasks[success.task_id].append(success)
    lines = [
        sorted(own, key=lambda success: stateless_random.number("imitated", train_step, success.trajectory_id))
        for _, own in sorted(of_tasks.items(), key=lambda item: stateless_random.number("task", train_step, item[0]))
    ]
    turns = [success for turn in itertools.zip_longest(*lines) for success in turn if success is not None]
    chosen = turns[: settings.updates * settings.trajectories]
    return [
        sft_group(f"phase-{train_step:06d}-{number}", chosen[start : start + settings.trajectories])
        for number, start in enumerate(range(0, len(chosen), settings.trajectories))
    ]
