"""The data manager, and tables of other papers' rules."""

from typing import Annotated, Literal

from msgspec import Meta

from dart_streams.config.section import Count, NonNegative, Optional, Positive, Section, Seed, Share
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
    """``informative`` prefers tasks of a success rate near one half; ``even`` takes all tasks in turn."""


class MobileRl(Optional, frozen=True):
    """Rules of MobileRL (arXiv 2509.18119)."""

    shortest_path: Share = 0.0
    """The share of its reward that a success loses by its excess length over the group's shortest (alpha)."""
    rest_after: Count = 0
    """Failures in a row after which a task rests; 0: never."""
    rest_passes: Count = 3
    """Length of a rest, in passes over all tasks."""


class CurriculumPhase(Optional, frozen=True):
    """A phase of a curriculum."""

    groups: Positive
    """Groups in this phase."""
    max_steps: Positive
    """Only tasks with at most this many steps."""


class CraftGui(Optional, frozen=True):
    """The curriculum of CRAFT-GUI."""

    phases: tuple[CurriculumPhase, ...] = ()
    """Phases in order, easy tasks first; after the last one all tasks take part."""


class UiS1(Optional, frozen=True):
    """UI-S1's credit of single steps (arXiv 2509.11543)."""

    step_weight: NonNegative = 0.0
    """Weight of the advantage of a step's future return, added to its trajectory's; 0 adds none."""
    discount: Share = 0.5
    """Discount of the return, a step."""


class Curation(Section, frozen=True):
    """The data manager."""

    max_staleness: Count = 2
    """Maximum staleness of training data at its optimizer step, in weight versions."""
    budget: Budget = Budget()
    length: Length = Length()
    entropy: Entropy = Entropy()
    pool: Pool = Pool()
    dispatch: Dispatch = Dispatch()
    mobilerl: MobileRl = MobileRl()
    craft_gui: CraftGui = CraftGui()
    ui_s1: UiS1 = UiS1()
