"""When dispatch may open one more group: a rule for each way of sampling. Pure.

``rollout-wise`` is DART's: single rollouts, a backlog of them, and no waiting for a group or a batch; only the
staleness bound stops it. The other two are what it is compared with, and the same system otherwise:

``task-wise``: a group gets as many slots as it has rollouts, and they are its own until its slowest rollout has ended.
``coupled``: a whole batch is ordered at once; then nothing until all of its groups have ended, the trainer has taken
them, and every rollout worker serves the version that they made.
"""

from typing import Literal, NamedTuple

from dart_streams.config import Config
from dart_streams.curation import staleness
from dart_streams.curation.order_tracker import backlog

Mode = Literal["rollout-wise", "task-wise", "coupled"]


class AdmissionLimits(NamedTuple):
    """What a deployment allows. ``largest`` is the most rollouts a group has, ``batch`` the groups of a step."""

    mode: Mode
    slots: int
    backlog: int
    largest: int
    batch: int
    max_staleness: int
    workers: int

    @classmethod
    def of(cls, config: Config) -> "AdmissionLimits":
        """Return the bounds of a deployment."""
        return cls(
            mode=config.curation.dispatch.mode,
            slots=config.env.workers * config.env.slots,
            backlog=backlog(config),
            largest=config.curation.budget.base,
            batch=config.trainer.groups_per_step,
            max_staleness=config.curation.max_staleness,
            workers=config.rollout.workers,
        )


class AdmissionLoad(NamedTuple):
    """What is under way: groups ``opened`` so far in all, those ``open`` now, and those ``unconsumed`` though curated.

    ``consumed`` are the groups that the trainer had taken at the newest version, and ``serving`` the rollout workers
    that serve that version. ``orders`` are still to end; ``reserved``, for the task-wise mode, are those of open groups
    whether ended or not. The batch under way goes up to group ``batch_end`` (exclusive).
    """

    opened: int
    open: int
    unconsumed: int
    consumed: int
    orders: int
    reserved: int
    serving: int
    batch_end: int


def admits(load: AdmissionLoad, bounds: AdmissionLimits) -> bool:
    """Say whether one more group may be opened now."""
    if bounds.mode == "coupled":
        return load.opened < load.batch_end or begins_batch(load, bounds)
    if not staleness.admits(load.open, load.unconsumed, bounds.batch, bounds.max_staleness):
        return False
    if bounds.mode == "task-wise":
        return not load.open or load.reserved + bounds.largest <= bounds.slots
    return load.orders < bounds.backlog


def begins_batch(load: AdmissionLoad, bounds: AdmissionLimits) -> bool:
    """Say whether a next batch may begin: the one before is trained on, and all workers serve what it made.

    The groups agent tells of each group of a batch, also of one that teaches nothing. So the trainer has consumed as
    many groups as were ever opened exactly when the last batch is over.
    """
    return load.opened >= load.batch_end and load.consumed >= load.opened and load.serving >= bounds.workers
