"""A workload: durations of real desktops, engines and optimizers, lengths of tasks, and one factor on all of them.

The ``simulated`` environment and the ``scripted`` engine draw from the table ``[workload]``, for instance that of
``deploy/config/workload/desktop.toml``. Durations are seconds of simulated time, of which ``time_scale`` pass in a
second. Pure: randomness comes in as a generator.
"""

import math
import random
from typing import NamedTuple

from dart_streams import stateless_random as names
from dart_streams.config.section import AboveZero, NonNegative, Optional, Positive, Real, Seed, Share
from dart_streams.portable_math import interpolate_quantile


class Spread(Optional, frozen=True):
    """A log-normal distribution with a heavy tail, or the quantiles of a measured one."""

    median: NonNegative = 0.0
    """Median; 0: always 0."""
    sigma: NonNegative = 0.0
    """Sigma of the logarithm."""
    tail: Share = 0.0
    """Share of draws multiplied by a Pareto factor of at least 1."""
    alpha: AboveZero = 2.0
    """Shape of the Pareto factor."""
    most: NonNegative = 3600.0
    """The largest value."""
    quantiles: tuple[Real, ...] = ()
    """Evenly spaced quantiles with the smallest and the largest value, which replace the other keys."""

    def draw(self, rng: random.Random) -> float:
        """Draw a value."""
        if self.quantiles:
            return interpolate_quantile(self.quantiles, rng.random())
        if self.median <= 0:
            return 0.0
        value = self.median * math.exp(rng.gauss(0.0, self.sigma)) if self.sigma else self.median
        if self.tail and rng.random() < self.tail:
            value *= rng.paretovariate(self.alpha)
        return min(value, self.most)


class GenerationTimes(Optional, frozen=True):
    """Durations of an engine."""

    prefill_s: NonNegative = 0.4
    """Time to the first token."""
    token_s: NonNegative = 0.012
    """Time for each token."""
    load: NonNegative = 1.0
    """Growth of both at a full engine; 1: twice as long."""
    tokens: Spread = Spread(median=90.0, sigma=0.4, most=500.0)
    """Tokens of an answer."""

    def takes_s(self, tokens: float, fullness: float) -> float:
        """Return the seconds of ``tokens`` when other requests take a share ``fullness`` of the engine."""
        return (self.prefill_s + tokens * self.token_s) * (1.0 + self.load * fullness)


class Workload(Optional, frozen=True):
    """Durations of real desktops, engines and optimizers, in seconds of simulated time."""

    time_scale: AboveZero = 50.0
    """Simulated seconds in a second; 1 is real time."""
    seed: Seed = 0
    """The seed of every draw."""
    reset_s: Spread = Spread(median=60.0, sigma=0.15, tail=0.05, most=170.0)
    """Duration of a reset."""
    settle_s: Spread = Spread(median=2.0, sigma=0.2, tail=0.02, alpha=1.5, most=60.0)
    """Duration of an action with the pause after it."""
    evaluate_s: Spread = Spread(median=2.2, sigma=0.4, tail=0.02, most=60.0)
    """Duration of an episode's evaluation."""
    hang_share: Share = 0.01
    """Share of episodes that hang at a call."""
    call_s: AboveZero = 180.0
    """Timeout of a call."""
    episode_s: AboveZero = 1800.0
    """Timeout of an episode."""
    steps_sigma: NonNegative = 0.2
    """Sigma of an episode's number of steps around the N of its page ``work-N``."""
    most_steps: Positive = 50
    """The largest number of steps."""
    success: tuple[Share, Share] = (0.1, 0.9)
    """Range of the tasks' success rates, evenly spread."""
    generation: GenerationTimes = GenerationTimes()
    optimizer_s: Spread = Spread(median=60.0, sigma=0.1)
    """Duration of an optimizer step."""
    switch_s: NonNegative = 5.0
    """Duration of a rollout worker's weight update in place."""
    restart_s: NonNegative = 65.6
    """Duration of a weight update by a restart of the engine."""

    def clock_s(self, seconds: float) -> float:
        """Return the real seconds of simulated ones."""
        return seconds / self.time_scale


PAGE = "work-"
"""Prefix of a workload's pages, before their typical number of steps."""


class Course(NamedTuple):
    """The course of an episode; ``hangs_at`` is 0 for the reset, n for the n-th action, None for no hang."""

    steps: int
    success: bool
    hangs_at: int | None


def typical_steps(page: str) -> int | None:
    """Return N of a page ``work-N``; None for any other page."""
    number = page.removeprefix(PAGE)
    return max(1, int(number)) if number != page and number.isdecimal() else None


def success_rate(workload: Workload, task_id: str) -> float:
    """Return a task's success rate, a hash of its id spread evenly over ``workload.success``."""
    low, high = workload.success
    return low + (high - low) * names.share("workload success", workload.seed, task_id)


def draw_course(workload: Workload, task_id: str, typical: int, rng: random.Random) -> Course:
    """Draw the course of an episode."""
    drawn = typical * math.exp(rng.gauss(0.0, workload.steps_sigma))
    steps = min(workload.most_steps, max(1, round(drawn)))
    success = rng.random() < success_rate(workload, task_id)
    hangs = rng.random() < workload.hang_share
    return Course(steps, success, rng.randint(0, steps) if hangs else None)
