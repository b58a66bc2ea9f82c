"""Print when the first budget came whose reason has a text: ``python -m tests.compose.budget SERVERS PREFIX TEXT``."""

import sys

from kafka import KafkaConsumer

from topics import rollout_budgets


def main(servers: str, prefix: str, text: str) -> None:
    """Read the topic from its beginning, and wait."""
    consumer = KafkaConsumer(
        prefix + rollout_budgets.TOPIC.name,
        bootstrap_servers=servers,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        metadata_max_age_ms=1000,  # the topic may come later
    )
    for record in consumer:
        if text.encode() in record.value:
            sys.stdout.write(str(record.timestamp))
            break
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
