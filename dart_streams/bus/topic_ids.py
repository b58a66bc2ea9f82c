"""The ids that Kafka gives to topics: one that was deleted and made again has the name of before, and another id.

Offsets say nothing of that: those of the new topic begin at 0 again, and pass for repeats of the old one. aiokafka asks
for metadata of version 5 at most, and ids came with version 10; so the request is built of its protocol classes here.
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
    """An id: 16 bytes."""

    @classmethod
    def encode(cls, value: uuid.UUID) -> bytes:
        """Return the id's bytes."""
        return value.bytes

    @classmethod
    def decode(cls, data: BytesIO) -> uuid.UUID:
        """Return the id that comes next."""
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
    """The request of that version."""

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
    """Asks for the metadata of some topics; it makes none."""

    API_KEY = 3

    def __init__(self, names: Collection[str]) -> None:
        self.names = names

    def build(self, request_struct_class: type[MetadataRequestV10]) -> MetadataRequestV10:
        """Return the request."""
        return request_struct_class([(UNKNOWN, name, {}) for name in self.names], False, False, False, {})


async def topic_ids(client: AIOKafkaClient, names: Collection[str]) -> dict[str, str]:
    """Return the ids of those of the topics that there are, by full name; none from a broker that knows no ids.

    Raises ``KafkaError`` if the broker does not answer.
    """
    try:
        answer: Any = await client.send(client.get_random_node(), TopicIdRequest(names))
    except NotImplementedError:
        return {}
    return {name: str(topic_id) for error, name, topic_id, *_ in answer.topics if not error and topic_id != UNKNOWN}


def recreated_topics(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """Return the topics that have another id than before; where one is not known, nothing is said."""
    return sorted(name for name, known in before.items() if now.get(name, known) != known)
