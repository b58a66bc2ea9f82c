"""Readiness of a consumer group's member: it has partitions."""

from aiokafka import AIOKafkaConsumer


def find_missing_partitions(consumer: AIOKafkaConsumer, group: str) -> str:
    """Return that a member of ``group`` has no partition, which is why it is not ready; empty if it has some."""
    return (
        ""
        if consumer.assignment()
        else f"no partition in the group {group}: it waits for a rebalance, or is one too many"
    )
