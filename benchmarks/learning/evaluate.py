"""Evaluation of a policy on the held-out tasks at several temperatures.

Training sharpens a policy, and so does a lower temperature. A gain that remains at 0.5 and greedily is more likely
skill.
"""

from collections import defaultdict
from statistics import fmean

import torch

from benchmarks.learning.circle import LearningCircle
from benchmarks.learning.episodes import play, single_order
from benchmarks.learning.results import Evaluated
from dart_streams.episodes.trajectory_summary import summarize

ROLLOUTS = {1.0: 3, 0.5: 2, 0.0: 1}
"""Rollouts of each held-out task by temperature; greedy ones are all equal."""
CONCURRENCY = 384
SEED = 5
"""Sampling seed of every evaluation."""


def evaluate(circle: LearningCircle, temperature: float, rollouts: int | None = None) -> Evaluated:
    """Play every held-out task ``rollouts`` times with the present policy; record nothing."""
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
