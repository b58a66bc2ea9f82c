"""A workload: how long real desktops, engines and optimizers take, how long tasks are, and one factor on all of it.

``deploy/config/workload/desktop.toml`` is one. The ``simulated`` environment and the ``scripted`` engine draw from it
where a configuration has a ``[workload]`` section. Everything is in seconds of the desktops' time, of which
``time_scale`` pass in a second of the clock. Pure: chance comes in as a generator.
"""

import math
import random
from typing import NamedTuple

from dart_streams import stateless_random as names
from dart_streams.config.section import AboveZero, NonNegative, Optional, Positive, Real, Seed, Share
from dart_streams.quantiles import interpolate_quantile


class Spread(Optional, frozen=True):
    """A log-normal distribution with a heavy tail, or the quantiles of a measured one."""

    median: NonNegative = 0.0
    """Median; 0: always 0."""
    sigma: NonNegative = 0.0
    """Sigma of the logarithm."""
    tail: Share = 0.0
    """Share of the draws that are multiplied by a Pareto factor of at least 1."""
    alpha: AboveZero = 2.0
    """Shape of the Pareto factor."""
    most: NonNegative = 3600.0
    """The largest value."""
    quantiles: tuple[Real, ...] = ()
    """Evenly spaced quantiles, smallest and largest value included: then they are the distribution, nothing else."""

    def draw(self, chance: random.Random) -> float:
        """Return a value."""
        if self.quantiles:
            return interpolate_quantile(self.quantiles, chance.random())
        if self.median <= 0:
            return 0.0
        value = self.median * math.exp(chance.gauss(0.0, self.sigma)) if self.sigma else self.median
        if self.tail and chance.random() < self.tail:
            value *= chance.paretovariate(self.alpha)
        return min(value, self.most)


class GenerationTimes(Optional, frozen=True):
    """How long an engine takes."""

    prefill_s: NonNegative = 0.4
    """Until the first token."""
    token_s: NonNegative = 0.012
    """For each token."""
    load: NonNegative = 1.0
    """Growth of both when the engine is full; 1: twice as long."""
    tokens: Spread = Spread(median=90.0, sigma=0.4, most=500.0)
    """Tokens of an answer."""

    def takes_s(self, tokens: float, fullness: float) -> float:
        """Return how long ``tokens`` take when so large a share of the engine's places is taken by others."""
        return (self.prefill_s + tokens * self.token_s) * (1.0 + self.load * fullness)


class Workload(Optional, frozen=True):
    """How long real desktops, engines and optimizers take, in seconds of the desktops' time."""

    time_scale: AboveZero = 50.0
    """Seconds of the desktops' time in a second of the clock; 1 is their own pace."""
    seed: Seed = 0
    """The seed of every draw."""
    reset_s: Spread = Spread(median=60.0, sigma=0.15, tail=0.05, most=170.0)
    """A reset."""
    settle_s: Spread = Spread(median=2.0, sigma=0.2, tail=0.02, alpha=1.5, most=60.0)
    """An action and the pause after it."""
    evaluate_s: Spread = Spread(median=2.2, sigma=0.4, tail=0.02, most=60.0)
    """The evaluation of an episode."""
    hang_share: Share = 0.01
    """Share of episodes that hang at one of their calls."""
    call_s: AboveZero = 180.0
    """After this long a call is given up."""
    episode_s: AboveZero = 1800.0
    """After this long an episode is cut."""
    steps_sigma: NonNegative = 0.2
    """Sigma of an episode's number of steps around its task's, which is the N of its page ``work-N``."""
    most_steps: Positive = 50
    """The largest number of steps."""
    success: tuple[Share, Share] = (0.1, 0.9)
    """Success rates of tasks, spread evenly between these two."""
    generation: GenerationTimes = GenerationTimes()
    optimizer_s: Spread = Spread(median=60.0, sigma=0.1)
    """An optimizer step."""
    switch_s: NonNegative = 5.0
    """A weight update of a rollout worker in place."""
    restart_s: NonNegative = 65.6
    """A weight update by a restart of the engine."""

    def clock_s(self, seconds: float) -> float:
        """Return how long seconds of the desktops' time take on the clock of a run."""
        return seconds / self.time_scale


PAGE = "work-"
"""Pages of a workload are named so, with their typical number of steps behind it."""


class Course(NamedTuple):
    """How an episode will go: its number of steps, whether it succeeds, and at which call it hangs.

    Call 0 is the reset, call n the n-th action; None if it never hangs.
    """

    steps: int
    success: bool
    hangs_at: int | None


def typical_steps(page: str) -> int | None:
    """Return N of a page ``work-N``; None for any other page."""
    number = page.removeprefix(PAGE)
    return max(1, int(number)) if number != page and number.isdecimal() else None


def success_rate(workload: Workload, task_id: str) -> float:
    """Return how often a task succeeds: a matter of its id, spread evenly over ``workload.success``."""
    low, high = workload.success
    return low + (high - low) * names.share("workload success", workload.seed, task_id)


def draw_course(workload: Workload, task_id: str, typical: int, chance: random.Random) -> Course:
    """Draw how an episode of a task will go."""
    drawn = typical * math.exp(chance.gauss(0.0, workload.steps_sigma))
    steps = min(workload.most_steps, max(1, round(drawn)))
    success = chance.random() < success_rate(workload, task_id)
    hangs = chance.random() < workload.hang_share
    return Course(steps, success, chance.randint(0, steps) if hangs else None)
