"""The modes that are compared, as settings of one configuration: same slots, same batch, same curation.

``coupled``
    A whole batch is ordered; when its slowest trajectory has ended the trainer makes a step while everything else
    waits; then all rollout workers switch at once; then the next batch.
``coupled-restart``
    The same, and a new version costs a restart of the engine, as in DART's release.
``task-wise``
    Decoupled, but a group keeps its slots until its slowest rollout has ended.
``dart-at-once``
    As ``dart``, but all rollout workers switch at once.
``dart``
    Single rollouts, a trainer that nothing waits for, and rollout workers that switch in turn.
"""

from pathlib import Path
from typing import Literal, get_args

import msgspec

from dart_streams import config as configuration
from dart_streams.config import Config
from dart_streams.config.workload import Workload
from dart_streams.errors import ConfigError

Mode = Literal["coupled", "coupled-restart", "task-wise", "dart-at-once", "dart"]
MODES: tuple[Mode, ...] = get_args(Mode)
DISPATCH: dict[Mode, Literal["rollout-wise", "task-wise", "coupled"]] = {
    "coupled": "coupled",
    "coupled-restart": "coupled",
    "task-wise": "task-wise",
    "dart-at-once": "rollout-wise",
    "dart": "rollout-wise",
}

AT_ONCE: tuple[Mode, ...] = ("coupled", "coupled-restart", "dart-at-once")
"""Modes whose rollout workers all switch at once."""
ROLLS = 4
"""Groups of rollout workers that switch in turn; one worker at a time is too slow among hundreds."""


class DeploymentShape(msgspec.Struct, frozen=True, kw_only=True):
    """Size of a deployment: slots, rollout workers with ``places`` requests each, groups per training step."""

    slots: int
    workers: int
    places: int
    batch: int
    max_staleness: int = 2
    curated: bool = True


def scale_shape(slots: int, batch: float, max_staleness: int, *, curated: bool = True) -> DeploymentShape:
    """Return a shape scaled from 180 slots with ``batch`` groups a step and four workers of 32 places."""
    workers = max(2, round(slots / 45))
    return DeploymentShape(
        slots=slots,
        workers=workers,
        places=max(1, round(slots * 128 / 180 / workers)),
        batch=max(1, round(batch * slots / 180)),
        max_staleness=max_staleness,
        curated=curated,
    )


def workload_of(config: Config) -> Workload:
    """Return the workload of a configuration; raise :class:`ConfigError` without one."""
    if config.workload is None:
        raise ConfigError("a configuration with a [workload] is needed, such as deploy/config/workload/desktop.toml")
    return config.workload


def load_config(path: Path) -> Config:
    """Return the configuration in a file, with an absolute ``tasks.file``."""
    config = configuration.load(path)
    tasks = msgspec.structs.replace(config.tasks, file=str((path.parent / config.tasks.file).absolute()))
    return msgspec.structs.replace(config, tasks=tasks)


def load_workload(path: Path, time_scale: float | None = None) -> Config:
    """Return the configuration of a workload, with another time scale if given."""
    config = load_config(path)
    workload = workload_of(config)
    scaled = msgspec.structs.replace(workload, time_scale=time_scale or workload.time_scale)
    return msgspec.structs.replace(config, workload=scaled)


def mode_config(base: Config, mode: Mode, shape: DeploymentShape, seed: int) -> Config:
    """Return ``base`` with the settings of mode and shape."""
    replace, workload = msgspec.structs.replace, workload_of(base)
    curation = replace(
        base.curation,
        max_staleness=shape.max_staleness,
        dispatch=replace(base.curation.dispatch, mode=DISPATCH[mode], seed=seed),
    )
    return replace(
        base,
        env=replace(base.env, slots=shape.slots, workers=1),
        rollout=replace(
            base.rollout,
            workers=shape.workers,
            max_in_flight=shape.places,
            roll_width=shape.workers if mode in AT_ONCE else max(1, shape.workers // ROLLS),
        ),
        trainer=replace(base.trainer, groups_per_step=shape.batch),
        curation=curation if shape.curated else disable_curation(curation),
        workload=replace(
            workload,
            seed=seed,
            switch_s=workload.restart_s if mode == "coupled-restart" else workload.switch_s,
        ),
    )


def disable_curation(curation: configuration.Curation) -> configuration.Curation:
    """Return the data manager's settings without DART's four rules."""
    replace = msgspec.structs.replace
    return replace(
        curation,
        budget=replace(curation.budget, dynamic=False),
        length=replace(curation.length, dynamic=False),
        entropy=replace(curation.entropy, keep=1.0),
        pool=replace(curation.pool, enabled=False),
    )
