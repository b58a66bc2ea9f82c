"""Kafka's topic ids, which tell a recreated topic from its predecessor.

Offsets do not: those of the new topic restart at 0 and look like repeats. aiokafka requests metadata of version 5 at
most, and ids came with version 10, so the request is built from its protocol classes.
"""

import uuid
from collections.abc import Collection
from io import BytesIO
from typing import Any

from aiokafka.client import AIOKafkaClient
from aiokafka.protocol import types
from aiokafka.protocol.api import Request, RequestStruct, Response


class Uuid(types.AbstractType[uuid.UUID]):
    """A 16-byte id."""

    @classmethod
    def encode(cls, value: uuid.UUID) -> bytes:
        """Return the bytes of an id."""
        return value.bytes

    @classmethod
    def decode(cls, data: BytesIO) -> uuid.UUID:
        """Read an id."""
        return uuid.UUID(bytes=data.read(16))


UNKNOWN = uuid.UUID(int=0)
NUMBERS = types.CompactArray(types.Int32)
BROKER = (
    ("node", types.Int32),
    ("host", types.CompactString()),
    ("port", types.Int32),
    ("rack", types.CompactString()),
    ("tags", types.TaggedFields),
)
PARTITION = (
    ("error_code", types.Int16),
    ("partition", types.Int32),
    ("leader", types.Int32),
    ("leader_epoch", types.Int32),
    ("replicas", NUMBERS),
    ("in_sync", NUMBERS),
    ("offline", NUMBERS),
    ("tags", types.TaggedFields),
)
TOPIC = (
    ("error_code", types.Int16),
    ("name", types.CompactString()),
    ("topic_id", Uuid),
    ("is_internal", types.Boolean),
    ("partitions", types.CompactArray(*PARTITION)),
    ("operations", types.Int32),
    ("tags", types.TaggedFields),
)


class MetadataResponseV10(Response):
    """https://kafka.apache.org/protocol#The_Messages_Metadata, version 10."""

    API_KEY = 3
    API_VERSION = 10
    SCHEMA = types.Schema(
        ("throttle_ms", types.Int32),
        ("brokers", types.CompactArray(*BROKER)),
        ("cluster_id", types.CompactString()),
        ("controller", types.Int32),
        ("topics", types.CompactArray(*TOPIC)),
        ("operations", types.Int32),
        ("tags", types.TaggedFields),
    )


class MetadataRequestV10(RequestStruct):
    """Metadata request, version 10."""

    API_KEY = 3
    API_VERSION = 10
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = MetadataResponseV10
    SCHEMA = types.Schema(
        (
            "topics",
            types.CompactArray(("topic_id", Uuid), ("name", types.CompactString()), ("tags", types.TaggedFields)),
        ),
        ("allow_creation", types.Boolean),
        ("cluster_operations", types.Boolean),
        ("topic_operations", types.Boolean),
        ("tags", types.TaggedFields),
    )


class TopicIdRequest(Request[MetadataRequestV10]):
    """Requests the metadata of topics without creating them."""

    API_KEY = 3

    def __init__(self, names: Collection[str]) -> None:
        self.names = names

    def build(self, request_struct_class: type[MetadataRequestV10]) -> MetadataRequestV10:
        """Return the request."""
        return request_struct_class([(UNKNOWN, name, {}) for name in self.names], False, False, False, {})


async def topic_ids(client: AIOKafkaClient, names: Collection[str]) -> dict[str, str]:
    """Return the ids of existing topics by full name; none from a broker without ids.

    Raises ``KafkaError`` if the broker does not answer.
    """
    try:
        answer: Any = await client.send(client.get_random_node(), TopicIdRequest(names))
    except NotImplementedError:
        return {}
    return {name: str(topic_id) for error, name, topic_id, *_ in answer.topics if not error and topic_id != UNKNOWN}


def recreated_topics(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """Return the topics whose id changed; unknown ids are ignored."""
    return sorted(name for name, known in before.items() if now.get(name, known) != known)
