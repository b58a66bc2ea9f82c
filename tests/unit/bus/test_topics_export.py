import re

import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from console.cli import topics as command
from dart_streams.bus.topology import TopicSpec, declare_topics, plan, strimzi_resource, strimzi_yaml
from dart_streams.config import Bus, Config
from workers.curator.changelogs import changelog_topics

KUBERNETES_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
topic_names = st.text("aZ9._-", min_size=1, max_size=249)
"""What Kafka takes for a topic's name."""


def exported(bus: Bus) -> list[dict]:
    specs = declare_topics(bus, changelog_topics(Config(bus=bus)))
    return list(yaml.safe_load_all(strimzi_yaml(specs, "kafka")))


def as_topic(resource: dict) -> TopicSpec:
    spec = resource["spec"]
    name = spec.get("topicName", resource["metadata"]["name"])
    return TopicSpec(name=name, partitions=spec["partitions"], configs=spec["config"])


def test_export_and_apply_agree_on_every_topic_and_configuration():
    bus = Bus(prefix="dart.r1.")
    config = Config(bus=bus)
    applied = {change.topic: change.after for change in plan(command.specs_of(config), {})}
    there = [as_topic(resource) for resource in exported(bus)]
    assert {topic.name: {"partitions": str(topic.partitions), **topic.configs} for topic in there} == applied
    assert plan(command.specs_of(config), {topic.name: topic for topic in there}) == []


def test_only_a_name_that_kubernetes_refuses_is_replaced():
    for resource in exported(Bus(prefix="DART_r1.")):
        assert KUBERNETES_NAME.fullmatch(resource["metadata"]["name"])
        assert resource["spec"]["topicName"].startswith("DART_r1.")
    assert not [resource for resource in exported(Bus(prefix="dart.r1.")) if "topicName" in resource["spec"]]


@given(st.lists(topic_names, unique=True))
def test_every_topic_has_a_resource_of_its_own(names: list[str]):
    made = [strimzi_resource(TopicSpec(name=name), "kafka") for name in names]
    assert len({topic["metadata"]["name"] for topic in made}) == len(names)
    assert all(KUBERNETES_NAME.fullmatch(topic["metadata"]["name"]) for topic in made)
    assert [as_topic(topic).name for topic in made] == names


def test_the_command_prints_resources_of_the_named_kafka():
    options = ["--format", "strimzi", "--cluster", "mine", "--namespace", "ours"]
    done = CliRunner().invoke(command.app, ["export", *options])
    resources = list(yaml.safe_load_all(done.stdout))
    assert done.exit_code == 0
    assert len(resources) == len(command.specs_of(command.read_config(None)))
    for resource in resources:
        assert (resource["apiVersion"], resource["kind"]) == ("kafka.strimzi.io/v1", "KafkaTopic")
        assert resource["metadata"]["namespace"] == "ours"
        assert resource["metadata"]["labels"] == {"strimzi.io/cluster": "mine"}
