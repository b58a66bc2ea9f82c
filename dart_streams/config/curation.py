"""The data manager: DART's rules. Those of other papers are recipes."""

from typing import Annotated, Literal

from msgspec import Meta

from dart_streams.config.section import Count, Section, Seed, Share
from topics.values import MOST_ROLLOUTS


class Budget(Section, frozen=True):
    """DART's dynamic rollout number."""

    dynamic: bool = True
    """Use fewer rollouts for tasks of a high success rate."""
    base: Annotated[int, Meta(ge=1, le=MOST_ROLLOUTS)] = 8
    """Rollouts of a group, at a success rate below ``threshold``."""
    threshold: Share = 0.6
    """The success rate above which a group gets fewer rollouts."""


class Length(Section, frozen=True):
    """DART's dynamic trajectory length."""

    dynamic: bool = True
    """Bound a task's episodes by its longest success."""


class Entropy(Section, frozen=True):
    """DART's selection of high-entropy steps."""

    keep: Share = 0.8
    """The share of a group's steps to train on, those of highest entropy; 1: all steps."""


class Pool(Section, frozen=True):
    """DART's experience pool: a group without a success is given one from the pool."""

    enabled: bool = True
    """Use the pool."""


class Dispatch(Section, frozen=True):
    """The order of tasks, and its pace."""

    mode: Literal["rollout-wise", "task-wise", "coupled"] = "rollout-wise"
    """DART's ``rollout-wise`` dispatch, or one of those it is compared with (dart_streams/curation/dispatch.py)."""
    seed: Seed = 0
    """The seed of the tasks' order."""
    choice: Literal["informative", "even"] = "informative"
    """``informative`` prefers tasks of a success rate near one half; ``even`` takes all tasks in turn,
    those that always succeed too, which otherwise get single probes only."""


class Curation(Section, frozen=True):
    """The data manager."""

    max_staleness: Count = 2
    """Maximum staleness of training data at its optimizer step, in weight versions."""
    budget: Budget = Budget()
    length: Length = Length()
    entropy: Entropy = Entropy()
    pool: Pool = Pool()
    dispatch: Dispatch = Dispatch()
