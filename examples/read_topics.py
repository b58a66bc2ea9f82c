"""An external consumer: success rate and mean steps of each task, from ``trajectories``, as they come.

Needs kafka-python and the package ``topics`` (which needs msgspec), nothing else of the project:
``.venv/streams/bin/python -m examples.read_topics 127.0.0.1:9092 dart.RUN.`` reads a run's records from the beginning.
"""

import sys
from collections import defaultdict
from collections.abc import Iterator

import msgspec
from kafka import KafkaConsumer

from topics import trajectories
from topics.trajectories import Trajectory


def read(servers: str, prefix: str, idle_ms: int) -> Iterator[Trajectory]:
    """Yield finished trajectories until none has come for ``idle_ms``."""
    consumer = KafkaConsumer(
        prefix + trajectories.TOPIC.name,
        bootstrap_servers=servers,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_timeout_ms=idle_ms,
    )
    decoder = msgspec.json.Decoder(Trajectory)
    try:
        for record in consumer:
            schema = dict(record.headers).get("schema", b"").decode()
            if schema != f"{trajectories.TOPIC.name}/{trajectories.TOPIC.version}":
                print(f"offset {record.offset} has the unknown schema {schema!r}: skipped", file=sys.stderr)
                continue
            yield decoder.decode(record.value)
    finally:
        consumer.close()


def main(servers: str, prefix: str, idle_ms: int = 5000) -> None:
    """Print a line for the task of each trajectory as it comes, with what is known of the task by then."""
    rewards: dict[str, list[float]] = defaultdict(list)
    steps: dict[str, list[int]] = defaultdict(list)
    for trajectory in read(servers, prefix, idle_ms):
        if trajectory.reward is not None:
            found, taken = rewards[trajectory.task_id], steps[trajectory.task_id]
            found.append(trajectory.reward)
            taken.append(trajectory.steps)
            means = f"mean reward {sum(found) / len(found):.2f} of {len(found)} rollouts, {sum(taken) / len(taken):.1f}"
            print(f"{trajectory.task_id}: {means} steps", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
