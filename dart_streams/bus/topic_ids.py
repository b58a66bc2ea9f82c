"""Kafka's topic ids, which tell a recreated topic from its predecessor.

Offsets do not: those of the new topic restart at 0 and look like repeats. aiokafka requests metadata of version 5 at
most, and ids came with version 10, so the request is built from its protocol classes.
"""

import uuid
from collections.abc import Collection
from io import BytesIO
from typing import Any

from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    AbstractType,
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)


class Uuid(AbstractType[uuid.UUID]):
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
NUMBERS = CompactArray(Int32)
BROKER = (
    ("node", Int32),
    ("host", CompactString()),
    ("port", Int32),
    ("rack", CompactString()),
    ("tags", TaggedFields),
)
PARTITION = (
    ("error_code", Int16),
    ("partition", Int32),
    ("leader", Int32),
    ("leader_epoch", Int32),
    ("replicas", NUMBERS),
    ("in_sync", NUMBERS),
    ("offline", NUMBERS),
    ("tags", TaggedFields),
)
TOPIC = (
    ("error_code", Int16),
    ("name", CompactString()),
    ("topic_id", Uuid),
    ("is_internal", Boolean),
    ("partitions", CompactArray(*PARTITION)),
    ("operations", Int32),
    ("tags", TaggedFields),
)


class MetadataResponseV10(Response):
    """https://kafka.apache.org/protocol#The_Messages_Metadata, version 10."""

    API_KEY = 3
    API_VERSION = 10
    SCHEMA = Schema(
        ("throttle_ms", Int32),
        ("brokers", CompactArray(*BROKER)),
        ("cluster_id", CompactString()),
        ("controller", Int32),
        ("topics", CompactArray(*TOPIC)),
        ("operations", Int32),
        ("tags", TaggedFields),
    )


class MetadataRequestV10(RequestStruct):
    """Metadata request, version 10."""

    API_KEY = 3
    API_VERSION = 10
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = MetadataResponseV10
    SCHEMA = Schema(
        ("topics", CompactArray(("topic_id", Uuid), ("name", CompactString()), ("tags", TaggedFields))),
        ("allow_creation", Boolean),
        ("cluster_operations", Boolean),
        ("topic_operations", Boolean),
        ("tags", TaggedFields),
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
