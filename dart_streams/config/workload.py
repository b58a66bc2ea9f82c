"""A workload: how long real desktops, engines and optimisers take, how long tasks are, and one factor on all of it.

``deploy/config/workload/desktop.toml`` is one. The ``simulated`` environment and the ``scripted`` engine draw from it
where a configuration has a ``[workload]`` section. Everything is in seconds of the desktops' time, of which
``time_scale`` pass in a second of the clock. Pure: chance comes in as a generator.
"""

import math
import random
from typing import NamedTuple

import msgspec

from dart_streams import stateless_random as names


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the workload."""


class Spread(Part, frozen=True):
    """A distribution: log-normal with this median and sigma, and a heavy tail.

    A share ``tail`` of the draws is multiplied by a Pareto factor (at least 1) of shape ``alpha``; none exceeds
    ``most``. Where ``quantiles`` are given (evenly spaced, the smallest and the largest value included, as of a
    captured run), they are the distribution, and nothing else counts.
    """

    median: float = 0.0
    sigma: float = 0.0
    tail: float = 0.0
    alpha: float = 2.0
    most: float = 3600.0
    quantiles: tuple[float, ...] = ()

    def draw(self, chance: random.Random) -> float:
        """Return a value."""
        if self.quantiles:
            place = chance.random() * (len(self.quantiles) - 1)
            low = min(int(place), max(0, len(self.quantiles) - 2))
            high = min(low + 1, len(self.quantiles) - 1)
            return self.quantiles[low] + (place - low) * (self.quantiles[high] - self.quantiles[low])
        if self.median <= 0:
            return 0.0
        value = self.median * math.exp(chance.gauss(0.0, self.sigma)) if self.sigma else self.median
        if self.tail and chance.random() < self.tail:
            value *= chance.paretovariate(self.alpha)
        return min(value, self.most)


class GenerationTimes(Part, frozen=True):
    """An engine: ``prefill_s``, and ``token_s`` for each token; both grow by ``load`` when the engine is full."""

    prefill_s: float = 0.4
    token_s: float = 0.012
    load: float = 1.0
    tokens: Spread = Spread(median=90.0, sigma=0.4, most=500.0)

    def takes_s(self, tokens: float, fullness: float) -> float:
        """Return how long ``tokens`` take when so large a share of the engine's places is taken by others."""
        return (self.prefill_s + tokens * self.token_s) * (1.0 + self.load * fullness)


class Workload(Part, frozen=True):
    """What the parts of a deployment take, in seconds of the desktops' time.

    A task's typical number of steps is the N of its page, ``work-N``; an episode's own varies around it by
    ``steps_sigma`` (log-normal) up to ``most_steps``. Tasks succeed at rates spread over ``success``. So large a share
    of episodes as ``hang_share`` hangs once, at one of its calls, until that is given up after ``call_s``; an episode
    is cut after ``episode_s``. A new version costs a rollout worker ``switch_s`` in place, ``restart_s`` if its engine
    is started again.
    """

    time_scale: float = 50.0
    seed: int = 0
    reset_s: Spread = Spread(median=60.0, sigma=0.15, tail=0.05, most=170.0)
    settle_s: Spread = Spread(median=2.0, sigma=0.2, tail=0.02, alpha=1.5, most=60.0)
    evaluate_s: Spread = Spread(median=2.2, sigma=0.4, tail=0.02, most=60.0)
    hang_share: float = 0.01
    call_s: float = 180.0
    episode_s: float = 1800.0
    steps_sigma: float = 0.2
    most_steps: int = 50
    success: tuple[float, float] = (0.1, 0.9)
    generation: GenerationTimes = GenerationTimes()
    optimiser_s: Spread = Spread(median=60.0, sigma=0.1)
    switch_s: float = 5.0
    restart_s: float = 65.6

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if self.time_scale <= 0:
            raise ValueError("time_scale must be above 0: 1 is the desktops' own pace")

    def clock_s(self, seconds: float) -> float:
        """Return how long so many seconds of the desktops' time take on the clock of a run."""
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


def course(workload: Workload, task_id: str, typical: int, chance: random.Random) -> Course:
    """Draw how an episode of a task will go."""
    drawn = typical * math.exp(chance.gauss(0.0, workload.steps_sigma))
    steps = min(workload.most_steps, max(1, round(drawn)))
    success = chance.random() < success_rate(workload, task_id)
    hangs = chance.random() < workload.hang_share
    return Course(steps, success, chance.randint(0, steps) if hangs else None)
