"""What a policy of a circle solves of the held-out tasks, at several temperatures.

Sampling at a lower temperature solves more with the same weights, and training sharpens a policy too. So a gain at
temperature 1 alone need not be skill: what is left of it at 0.5, and greedily, is less easily had by sharpening.
"""

from collections import defaultdict
from statistics import fmean

import torch

from benchmarks.learning.circle import LearningCircle
from benchmarks.learning.episodes import play, single_order
from benchmarks.learning.results import Evaluated
from dart_streams.episodes.trajectory_summary import summarize

ROLLOUTS = {1.0: 3, 0.5: 2, 0.0: 1}
"""Rollouts of each held-out task; a greedy one is the same each time."""
CONCURRENCY = 384
SEED = 5
"""The chance of sampling is the same in each evaluation."""


def evaluate(circle: LearningCircle, temperature: float, rollouts: int | None = None) -> Evaluated:
    """Play every held-out task with the circle's policy as it is, ``rollouts`` times; nothing is recorded."""
    sampling = circle.config.sampling(temperature)
    answer = circle.policy.answers(torch.Generator().manual_seed(SEED))
    tasks = [(task, number) for task in circle.tasks.heldout for number in range(rollouts or ROLLOUTS[temperature])]
    solved: defaultdict[str, list[bool]] = defaultdict(list)
    for start in range(0, len(tasks), CONCURRENCY):
        part = tasks[start : start + CONCURRENCY]
        begun = [circle.begin(single_order(task, "eval", number, sampling)) for task, number in part]
        for (task, _), observations in zip(part, play(begun, answer), strict=True):
            solved[task.page].append(summarize(observations).outcome == "success")
    pages = {page: fmean(results) for page, results in solved.items()}
    return Evaluated(temperature, fmean(pages.values()), pages)
