"""Topics as code for a Kafka run by Strimzi: the topics of ``topics apply`` as ``KafkaTopic`` resources.

Strimzi's topic operator creates and updates them. As with ``topics apply``, they have as many replicas as Kafka's
``default.replication.factor``.
"""

import hashlib
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from dart_streams.bus.topology import TopicSpec

MAX_LENGTH = 253
NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
"""A valid resource name in Kubernetes: a DNS subdomain (RFC 1123)."""
DIGITS = 8


def resource(spec: TopicSpec, cluster: str, namespace: str = "") -> dict[str, Any]:
    """Return the resource of a topic for the Kafka called ``cluster``."""
    name = resource_name(spec.name)
    return {
        "apiVersion": "kafka.strimzi.io/v1",
        "kind": "KafkaTopic",
        "metadata": {"name": name, "labels": {"strimzi.io/cluster": cluster}}
        | ({"namespace": namespace} if namespace else {}),
        "spec": {"partitions": spec.partitions, "config": spec.configs}
        | ({} if name == spec.name else {"topicName": spec.name}),
    }


def resource_name(topic: str) -> str:
    """Return the topic's name if Kubernetes accepts it, else a unique one made of it."""
    if len(topic) <= MAX_LENGTH and NAME.fullmatch(topic):
        return topic
    readable = re.sub(r"[^a-z0-9]+", "-", topic.lower()).strip("-")[: MAX_LENGTH - DIGITS - 1] or "topic"
    return f"{readable.rstrip('-')}-{hashlib.sha256(topic.encode()).hexdigest()[:DIGITS]}"


def as_yaml(specs: Sequence[TopicSpec], cluster: str, namespace: str = "") -> str:
    """Return the resources of topics as the documents of one YAML file."""
    return "---\n".join(msgspec.yaml.encode(resource(spec, cluster, namespace)).decode() for spec in specs)
