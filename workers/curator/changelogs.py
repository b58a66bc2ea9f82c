"""The topics behind the curator's tables. Faust declares none: they are applied with all others."""

from dart_streams.bus.topology import NO_BOUND_MS, TopicSpec, clock_bounds
from dart_streams.config import Config
from dart_streams.curation import budget, difficulty, dispatch, groups
from topics import Topic, task_difficulty, trajectories

MAX_RECORD_BYTES = 16 * 1024 * 1024
"""The largest record: a whole snapshot is one."""
SOURCES: dict[str, Topic | None] = {
    difficulty.NAME: trajectories.TOPIC,
    budget.NAME: task_difficulty.TOPIC,
    groups.NAME: trajectories.TOPIC,
    dispatch.NAME: None,
}
"""The topic whose partitions each have a state of the agent; dispatch has one state of all its inputs."""


def application_id(config: Config) -> str:
    """Return the Faust application's id, which is also its consumer group."""
    return f"{config.bus.prefix}curator"


def changelog_of(config: Config, agent: str) -> str:
    """Return the name that Faust gives the changelog of an agent's table."""
    return f"{application_id(config)}-{agent}-changelog"


def changelog_topics(config: Config) -> list[TopicSpec]:
    """Return the changelogs of a deployment.

    They take records of any time: that a clock is off is found by what is published, which a journal has by then. Small
    segments let the broker compact entries that precede the snapshot, so that a restart has little to read.
    """
    return [
        TopicSpec(
            name=changelog_of(config, name),
            partitions=source.partitions if source else 1,
            configs={
                "cleanup.policy": "compact",
                "max.message.bytes": str(MAX_RECORD_BYTES),
                "segment.bytes": str(MAX_RECORD_BYTES),
                "min.cleanable.dirty.ratio": "0.2",
                **clock_bounds(NO_BOUND_MS),
            },
        )
        for name, source in SOURCES.items()
    ]
