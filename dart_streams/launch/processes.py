"""Which processes a run has, and the command line of each: the right environment's program, the run's configuration."""

import sys
from pathlib import Path

import msgspec

from dart_streams.config import Config
from dart_streams.errors import UserError
from dart_streams.launch.supervisor import ProcessSpec


class Programs(msgspec.Struct, frozen=True):
    """The ``dart-streams`` program of each virtual environment."""

    streams: Path
    model: Path


class ProcessSet(msgspec.Struct, frozen=True):
    """The processes of a run, by what they do."""

    env: tuple[ProcessSpec, ...] = ()
    recorder: tuple[ProcessSpec, ...] = ()
    rollout: tuple[ProcessSpec, ...] = ()
    trainer: tuple[ProcessSpec, ...] = ()
    curator: tuple[ProcessSpec, ...] = ()
    monitor: tuple[ProcessSpec, ...] = ()


def programs(prefix: Path = Path(sys.prefix)) -> Programs:
    """Find both environments beside each other, as `make setup` makes them, from the one that runs this."""
    return Programs(*(prefix.parent / name / "bin" / "dart-streams" for name in ("streams", "model")))


def processes_of(config: Config, config_file: Path, found: Programs) -> ProcessSet:
    """Return every process of ``config``; raise :class:`UserError` if an environment that one needs is missing."""
    model_side = config.rollout.engine == "vllm"
    for program in [found.streams, found.model] if model_side else [found.streams]:
        if not program.exists():
            raise UserError(f"{program} is missing: run `make setup`")

    def workers(kind: str, count: int, program: Path = found.streams, *, last: bool = False) -> tuple[ProcessSpec, ...]:
        return tuple(
            ProcessSpec(name, (str(program), "worker", kind, "--config", str(config_file), "--id", name), last)
            for name in (f"{kind}-{number}" for number in range(count))
        )

    return ProcessSet(
        env=workers("env", config.env.workers),
        recorder=workers("recorder", 1, last=True),
        rollout=workers("rollout", config.rollout.workers, found.model if model_side else found.streams),
        trainer=(ProcessSpec("trainer", (str(found.model), "train", "--config", str(config_file))),),
        curator=workers("curator", 1),
        monitor=workers("monitor", 1),
    )


def policy_build(config_file: Path, found: Programs) -> ProcessSpec:
    """Return the command that builds the tiny policy."""
    if not found.model.exists():
        raise UserError(f"{found.model} is missing: run `make setup`")
    return ProcessSpec("policy", (str(found.model), "policy", "build", "--config", str(config_file)))
