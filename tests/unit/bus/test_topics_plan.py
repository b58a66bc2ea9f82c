import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import KafkaTimeoutError

import topics
from dart_streams.bus.admin import TopicsRefused, apply, refuse_impossible
from dart_streams.bus.dead_letters import SUFFIX
from dart_streams.bus.topology import DEAD_LETTERS, Change, TopicSpec, declare_topics, list_grown, plan
from dart_streams.config import Bus, TopicSettings
from dart_streams.errors import ServiceUnavailable

BUS = Bus(prefix="dart.r1.")
names = st.sampled_from(["a", "b", "c", "d"])
specs = st.builds(
    TopicSpec,
    name=names,
    partitions=st.integers(1, 4),
    shared=st.booleans(),
    configs=st.dictionaries(st.sampled_from(["retention.ms", "cleanup.policy"]), st.sampled_from(["1", "2"])),
)
worlds = st.lists(specs, unique_by=lambda spec: spec.name)


def carried_out(changes: list[Change], actual: dict[str, TopicSpec]) -> dict[str, TopicSpec]:
    """What a broker would have after ``changes``."""
    world = dict(actual)
    for change in changes:
        before = world.get(change.topic, TopicSpec(name=change.topic))
        partitions = int(change.after.get("partitions", before.partitions))
        configs = {key: value for key, value in change.after.items() if key != "partitions"}
        world[change.topic] = TopicSpec(name=change.topic, partitions=partitions, configs={**before.configs, **configs})
    return world


@given(worlds, worlds)
def test_a_plan_touches_declared_topics_alone_and_leaves_nothing_to_do(wanted: list[TopicSpec], there: list[TopicSpec]):
    actual = {spec.name: spec for spec in there}
    changes = plan(wanted, actual)
    assert {change.topic for change in changes} <= {spec.name for spec in wanted}
    assert plan(wanted, carried_out(changes, actual)) == []
    assert plan(wanted, {spec.name: spec for spec in wanted}) == []


def test_the_plan_says_what_will_be_and_shared_topics_keep_their_growth():
    wanted = TopicSpec(name="t", partitions=4, configs={"retention.ms": "2", "cleanup.policy": "delete"})
    actual = TopicSpec(name="t", partitions=1, configs={"retention.ms": "1", "cleanup.policy": "delete"})
    assert plan([wanted], {"t": actual}) == [
        Change(topic="t", action="add partitions", before={"partitions": "1"}, after={"partitions": "4"}),
        Change(topic="t", action="alter", before={"retention.ms": "1"}, after={"retention.ms": "2"}),
    ]
    wanted = [TopicSpec(name="a", partitions=4, shared=True), TopicSpec(name="b", partitions=4, shared=True)]
    actual = {"a": TopicSpec(name="a", partitions=8), "b": TopicSpec(name="b", partitions=4)}
    assert plan(wanted, actual) == []
    assert list_grown(wanted, actual) == ["a keeps its 8 partitions; 4 are declared"]


def test_fewer_partitions_and_other_replicas_are_refused_with_the_way_out():
    wanted, actual = TopicSpec(name="t", partitions=2), TopicSpec(name="t", partitions=5)
    with pytest.raises(TopicsRefused, match="t has 5, declared 2"):
        refuse_impossible(plan([wanted], {"t": actual}))
    changes = plan([TopicSpec(name="t", replicas=3)], {"t": TopicSpec(name="t", replicas=1)})
    with pytest.raises(TopicsRefused, match=r"t has 1, declared 3\)\. Move them with `dart-streams topics move`"):
        refuse_impossible(changes)
    assert plan([TopicSpec(name="t")], {"t": TopicSpec(name="t", replicas=3)}) == [], "the broker's default is any"


def test_every_topic_is_declared_under_the_prefix_with_its_dead_letters():
    assert DEAD_LETTERS == SUFFIX
    changelog = TopicSpec(name="difficulty-table-changelog", configs={"cleanup.policy": "compact"})
    *declared, extra = declare_topics(BUS, [changelog])
    assert extra == changelog, "under its own name"
    by_name = {spec.name: spec for spec in declared}
    for topic in topics.ALL:
        assert by_name[f"dart.r1.{topic.name}"].partitions == topic.partitions
        twin = by_name.get(f"dart.r1.{topic.name}.dlq")
        assert (twin is None) == (topic.name == "weights")
        assert twin is None or int(twin.configs["max.message.bytes"]) > topic.max_message_bytes
    assert by_name["dart.r1.weights"].partitions == 1
    assert by_name["dart.r1.weights"].configs["retention.ms"] == "-1"
    assert by_name["dart.r1.weights-serving"].configs["cleanup.policy"] == "compact"


def test_a_deployment_sets_partitions_replicas_and_retention():
    settings = TopicSettings(
        partitions=16, replicas=3, retention_hours={"observations": 2, "curated": 0, "actions": 0.25}
    )
    bus = Bus(prefix="p.", topics=settings)
    by_name = {spec.name.removeprefix("p."): spec for spec in declare_topics(bus, [TopicSpec(name="changelog")])}
    assert {spec.replicas for spec in by_name.values()} == {3}
    shared = {topic.name for topic in topics.ALL if topic.shared}
    assert shared == {"rollout-orders", "observations", "action-requests", "actions"}
    assert {name: spec.partitions for name, spec in by_name.items() if spec.partitions > 1} == dict.fromkeys(shared, 16)
    assert by_name["observations"].configs["retention.ms"] == "7200000"
    assert by_name["curated"].configs["retention.ms"] == "-1"
    assert by_name["trajectories"].configs["retention.ms"] == "-1", "as long as the run"
    assert by_name["action-requests"].configs["retention.ms"] == "-1", "what was asked outlives the run too"
    assert by_name["actions"].configs["message.timestamp.before.max.ms"] == "900000", "no older than it is kept"


@pytest.mark.parametrize(
    ("retention_hours", "reason"),
    [
        ({"orders": 1}, "no topic has this name: use one of rollout-orders"),
        ({"weights": 24}, "kept as long as the run"),
        ({"actions": 0.1}, "0.25 hours at least"),
        ({"observations": 0.5}, "1 hours at least"),
    ],
)
def test_a_retention_that_loses_records_in_use_is_refused(retention_hours, reason):
    with pytest.raises(ValueError, match=reason):
        TopicSettings(retention_hours=retention_hours)


BROKERS = ("deploy/local/kafka/server.properties", "docker-compose.yml", "deploy/k8s/components/strimzi/kafka.yaml")


@pytest.mark.parametrize("file", BROKERS)
def test_a_broker_keeps_the_offsets_of_a_run_as_long_as_its_records(file):
    """A run that is resumed after a week would otherwise read its orders and requests from the beginning."""
    text = (Path(__file__).parents[3] / file).read_text().lower().replace("_", ".")
    assert re.findall(r"offsets\.retention\.minutes\W+(\d+)", text) == [str(2**31 - 1)]


def test_topics_that_stay_without_a_leader_are_no_refusal_of_the_broker():
    def never(names: list[str], timeout_ms: int) -> None:
        raise KafkaTimeoutError(f"Topics not ready after {timeout_ms}ms")

    created = {"topics": [{"name": "a", "error_code": 0, "error_message": None}]}
    slow: Any = SimpleNamespace(create_topics=lambda wanted, raise_errors: created, wait_for_topics=never)
    change = Change(topic="a", action="create", before={}, after={"partitions": "1"})
    with pytest.raises(ServiceUnavailable, match=r"accepted topics that are not ready: .*120000ms"):
        apply(slow, [change])
