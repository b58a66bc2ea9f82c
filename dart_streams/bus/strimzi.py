"""Topics as code for a Kafka that Strimzi runs: what ``topics apply`` makes, as its ``KafkaTopic`` resources.

Strimzi's topic operator then makes and keeps the topics. Each has as many replicas as ``default.replication.factor`` of
the Kafka says, as with ``topics apply``.
"""

import hashlib
import re
from collections.abc import Sequence

import msgspec

from dart_streams.bus.topology import TopicSpec

API_VERSION = "kafka.strimzi.io/v1"
CLUSTER_LABEL = "strimzi.io/cluster"
NAME_LENGTH = 253
NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
"""What Kubernetes takes for the name of a resource: a DNS subdomain (RFC 1123)."""
DIGITS = 8


class ResourceMetadata(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the resource is called, and which Kafka it belongs to."""

    name: str
    labels: dict[str, str]
    namespace: str = ""


class TopicResourceSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The topic; ``topic_name`` only where it differs from the resource's name."""

    partitions: int
    config: dict[str, str]
    topic_name: str = ""


class KafkaTopic(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A resource of Strimzi's kind ``KafkaTopic``."""

    api_version: str = API_VERSION
    kind: str = "KafkaTopic"
    metadata: ResourceMetadata
    spec: TopicResourceSpec


def resources(specs: Sequence[TopicSpec], cluster: str, namespace: str = "") -> list[KafkaTopic]:
    """Return the resource of each topic for the Kafka called ``cluster``."""
    return [
        KafkaTopic(
            metadata=ResourceMetadata(
                name=resource_name(spec.name), labels={CLUSTER_LABEL: cluster}, namespace=namespace
            ),
            spec=TopicResourceSpec(
                partitions=spec.partitions,
                config=spec.configs,
                topic_name="" if resource_name(spec.name) == spec.name else spec.name,
            ),
        )
        for spec in specs
    ]


def resource_name(topic: str) -> str:
    """Return the topic's name, or one that Kubernetes takes and that no other topic has."""
    if len(topic) <= NAME_LENGTH and NAME.fullmatch(topic):
        return topic
    readable = re.sub(r"[^a-z0-9]+", "-", topic.lower()).strip("-")[: NAME_LENGTH - DIGITS - 1] or "topic"
    return f"{readable.rstrip('-')}-{hashlib.sha256(topic.encode()).hexdigest()[:DIGITS]}"


def as_yaml(topics: Sequence[KafkaTopic]) -> str:
    """Return resources as the documents of one YAML file."""
    return "---\n".join(msgspec.yaml.encode(topic).decode() for topic in topics)
