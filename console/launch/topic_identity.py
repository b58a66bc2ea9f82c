"""Check by the broker's topic ids that a resumed run finds its topics."""

from collections.abc import Mapping

from dart_streams.bus import admin
from dart_streams.bus.topology import declare_topics
from dart_streams.config import Bus
from dart_streams.errors import UserError
from topics import ALL, rollout_orders


class LogGone(UserError):
    """The log of a run is gone, so the run can't be resumed."""


def read(bus: Bus) -> dict[str, str]:
    """Return the ids of the run's existing topics, by name without the prefix."""
    with admin.connect(bus) as client:
        found = admin.topic_ids(client, [bus.prefix + topic.name for topic in ALL])
    return {name.removeprefix(bus.prefix): known for name, known in found.items()}


def missing_topics(bus: Bus, known: Mapping[str, str], run_id: str) -> list[str]:
    """Return a message for each topic that no longer has its ``known`` id.

    Raises :class:`LogGone` if the orders are gone and no new ones exist: the report could not count lost orders.
    """
    now = read(bus) if known else {}
    gone = [name for name, topic_id in known.items() if now.get(name) != topic_id]
    if rollout_orders.TOPIC.name in gone and not holds_records(bus, rollout_orders.TOPIC.name):
        raise LogGone(
            f"run {run_id} can't be resumed: topic {bus.prefix}{rollout_orders.TOPIC.name} was deleted since, and with "
            f"it the orders of this run ({len(gone)} of its {len(known)} topics are gone). Start a new run: call "
            "`dart-streams run` without --resume. What this one has in its folder and in the store stays as it is"
        )
    return [
        f"topic {bus.prefix}{name} was deleted since this run was last started: what was in it is gone; the run goes "
        "on with a new one, and orders that can never end are found and ordered again"
        for name in gone
    ]


def holds_records(bus: Bus, name: str) -> bool:
    """Return whether a topic of this name had any record since its creation."""
    with admin.connect(bus) as client:
        wanted = [spec for spec in declare_topics(bus) if spec.name == bus.prefix + name]
        return any(end for state in admin.describe(client, wanted) for end in state.end_offsets)
