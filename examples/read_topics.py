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
    """Print a line for each task."""
    rewards: dict[str, list[float]] = defaultdict(list)
    steps: dict[str, list[int]] = defaultdict(list)
    for trajectory in read(servers, prefix, idle_ms):
        if trajectory.reward is not None:
            rewards[trajectory.task_id].append(trajectory.reward)
            steps[trajectory.task_id].append(trajectory.steps)
    for task_id, found in sorted(rewards.items()):
        mean_steps = sum(steps[task_id]) / len(found)
        print(f"{task_id}: mean reward {sum(found) / len(found):.2f} of {len(found)} rollouts, {mean_steps:.1f} steps")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
