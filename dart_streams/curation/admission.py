"""When dispatch may open one more group: a rule for each way of sampling. Pure.

``rollout-wise`` is DART's: a backlog of single rollouts, without waiting for a group or a batch; only the staleness
bound limits it. The other two are the baselines, and the same system otherwise:

``task-wise``: a group reserves as many slots as it has rollouts, until its slowest rollout has ended.
``coupled``: a whole batch is ordered at once; then nothing until all of its groups have ended, the trainer has taken
them, and every rollout worker serves the version that they made.
"""

from typing import Literal, NamedTuple

from dart_streams.config import Config
from dart_streams.curation import staleness
from dart_streams.curation.order_tracker import backlog

Mode = Literal["rollout-wise", "task-wise", "coupled"]


class AdmissionLimits(NamedTuple):
    """The limits of a deployment. ``largest`` is the size of the largest group, ``batch`` the groups of a step."""

    mode: Mode
    slots: int
    backlog: int
    largest: int
    batch: int
    max_staleness: int
    workers: int

    @classmethod
    def of(cls, config: Config) -> "AdmissionLimits":
        """Return the limits of a deployment."""
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
    """The present load: groups ``opened`` so far, ``open`` now, and ``unconsumed`` (curated, not taken by the trainer).

    ``consumed`` counts groups that the trainer had taken at the newest version, ``serving`` the rollout workers that
    serve that version. ``orders`` counts open orders; ``reserved``, for the task-wise mode, all orders of open groups.
    The current batch ends before group ``batch_end``.
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
    """Say whether the next batch may begin: the last one is trained on, and all workers serve the version it made.

    The groups agent publishes each group of a batch, also one without a learning signal. So the trainer has consumed as
    many groups as were ever opened exactly when the last batch is over.
    """
    return load.opened >= load.batch_end and load.consumed >= load.opened and load.serving >= bounds.workers
