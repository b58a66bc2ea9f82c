"""Topics of the curator's tables, applied with all others; Faust declares none."""

from dart_streams.bus.topology import NO_BOUND_MS, TopicSpec, clock_bounds
from dart_streams.config import Config
from dart_streams.curation import budget, difficulty, dispatch, feedback, groups, proposals
from topics import Topic, task_difficulty, trajectories

MAX_RECORD_BYTES = 16 * 1024 * 1024
"""Maximum record; a snapshot is one."""
SOURCES: dict[str, Topic | None] = {
    difficulty.NAME: trajectories.TOPIC,
    budget.NAME: task_difficulty.TOPIC,
    groups.NAME: trajectories.TOPIC,
    dispatch.NAME: None,
}
"""Topic whose partitions each have a state of the agent; dispatch has one state of all inputs, as have proposals and
feedback."""


def application_id(config: Config) -> str:
    """Return the Faust application's id, which is its consumer group."""
    return f"{config.bus.prefix}curator"


def changelog_of(config: Config, agent: str) -> str:
    """Return Faust's name of an agent's changelog."""
    return f"{application_id(config)}-{agent}-changelog"


def changelog_topics(config: Config) -> list[TopicSpec]:
    """Return the changelogs of a deployment.

    They accept any timestamp, since only publishing detects a wrong clock, after journaling. Small segments let the
    broker compact old entries, so that a restart reads little.
    """
    sources = SOURCES | ({proposals.NAME: None} if config.tasks.proposals else {})
    sources |= {feedback.NAME: None} if config.feedback.enabled else {}
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
        for name, source in sources.items()
    ]
