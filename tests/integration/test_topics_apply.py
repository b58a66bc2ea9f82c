"""Topics as code against a real broker."""

import json
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

import topics
from dart_streams.bus import admin
from dart_streams.bus.admin import TopicsRefused
from dart_streams.bus.topology import TopicSpec, declare_topics
from dart_streams.config import Bus, TopicSettings
from tests import fork_server
from tests.topic_reader import delete_topics

BOUND_S = 120.0
COMMAND = [fork_server.PROGRAM, "topics"]


@pytest.fixture
def bus(services: Any) -> Bus:
    return services.config().bus


@pytest.fixture
def file(bus: Bus, tmp_path: Path) -> Path:
    file = tmp_path / "c.toml"
    file.write_text(f'bus.servers = "{bus.servers}"\nbus.prefix = "{bus.prefix}"\n')
    return file


def run(file: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return fork_server.run([*COMMAND, *arguments, "--config", str(file)], text=True, timeout=BOUND_S)


def test_every_declared_topic_is_made_and_a_second_apply_changes_nothing(bus):
    with admin.connect(bus) as client:
        assert admin.read_topics(client, declare_topics(bus)).keys() == {spec.name for spec in declare_topics(bus)}
        assert admin.plan_against(client, declare_topics(bus)) == []
    assert admin.apply_all(bus) == []


def test_a_topic_is_brought_back_to_what_is_declared(bus):
    name = bus.prefix + topics.observations.TOPIC.name
    with admin.connect(bus) as client:
        drifted = TopicSpec(name=name, partitions=4, configs={"retention.ms": "1000", "cleanup.policy": "compact"})
        admin.apply(client, admin.plan_against(client, [drifted]))
    (change,) = admin.apply_all(bus)
    assert change.before == {"cleanup.policy": "compact", "retention.ms": "1000"}
    with admin.connect(bus) as client:
        assert admin.plan_against(client, declare_topics(bus)) == []


def test_partitions_are_added_and_never_taken_away(bus):
    name = bus.prefix + "extra"
    admin.apply_all(bus, [TopicSpec(name=name, partitions=1)])
    (change,) = admin.apply_all(bus, [TopicSpec(name=name, partitions=3)])
    assert (change.action, change.after) == ("add partitions", {"partitions": "3"})
    with pytest.raises(TopicsRefused, match=f"{name} has 3, declared 2"):
        admin.apply_all(bus, [TopicSpec(name=name, partitions=2)])


def test_partitions_replicas_and_retention_are_those_of_the_file(bus):
    settings = TopicSettings(partitions=6, replicas=1, retention_hours={"observations": 2})
    fresh = msgspec.structs.replace(bus, prefix=f"{bus.prefix}fresh.", topics=settings)
    admin.apply_all(fresh)
    with admin.connect(fresh) as client:
        found = admin.describe(client, declare_topics(fresh))
    states = {state.topic.removeprefix(fresh.prefix): state for state in found}
    shared = {topic.name for topic in topics.ALL if topic.shared}
    assert {name: state.partitions for name, state in states.items() if name in shared} == dict.fromkeys(shared, 6)
    assert {state.replicas for state in states.values()} == {1}
    assert states["observations"].configs["retention.ms"] == "7200000"
    with pytest.raises(TopicsRefused, match="topics move"):
        admin.apply_all(msgspec.structs.replace(fresh, topics=TopicSettings(replicas=2)))


def test_topics_of_before_keep_a_run_whole_once_they_are_applied(bus):
    week = TopicSettings(retention_hours={t.name: 168 for t in topics.ALL if t.shortest_ms})
    old = msgspec.structs.replace(bus, prefix=f"{bus.prefix}old.", topics=week)
    admin.apply_all(old)
    changed = admin.apply_all(msgspec.structs.replace(old, topics=TopicSettings()), keep_grown=True)
    assert len(changed) == len(week.retention_hours) >= 7
    assert {change.before["retention.ms"] for change in changed} == {"604800000"}
    with admin.connect(old) as client:
        found = admin.describe(client, [spec for spec in declare_topics(old) if not spec.name.endswith(".dlq")])
    kept = {state.topic.removeprefix(old.prefix): state.configs["retention.ms"] for state in found}
    assert set(kept.values()) == {"-1"}


def test_a_resumed_run_keeps_grown_topics_and_makes_missing_ones(bus):
    grown, fresh = TopicSpec(name=bus.prefix + "rollout-orders", partitions=1), TopicSpec(name=bus.prefix + "fresh")
    (change,) = admin.apply_all(bus, [grown, fresh], keep_grown=True)
    assert (change.topic, change.action) == (fresh.name, "create")


def test_a_plan_that_would_shrink_changes_nothing_at_all(bus):
    shrunk, fresh = TopicSpec(name=bus.prefix + "rollout-orders", partitions=1), TopicSpec(name=bus.prefix + "fresh")
    with pytest.raises(TopicsRefused):
        admin.apply_all(bus, [shrunk, fresh])
    with admin.connect(bus) as client:
        assert admin.read_topics(client, [fresh]) == {}


def test_what_the_broker_refuses_is_an_error_that_names_the_topic(bus):
    name = bus.prefix + "extra"
    with pytest.raises(TopicsRefused, match=f"{name} was not created"):
        admin.apply_all(bus, [TopicSpec(name=name, configs={"retention.ms": "soon"})])
    admin.apply_all(bus, [TopicSpec(name=name, configs={"retention.ms": "1000"})])
    with pytest.raises(TopicsRefused, match=f"{name} was not altered"):
        admin.apply_all(bus, [TopicSpec(name=name, configs={"retention.ms": "soon"})])


def test_a_topic_deleted_while_it_is_read_is_made_again(bus, monkeypatch):
    name = bus.prefix + topics.curated.TOPIC.name
    with admin.connect(bus) as client:
        described = client.describe_configs

        def describe_late(*arguments: Any, **options: Any) -> Any:
            monkeypatch.undo()
            delete_topics(client, [name])
            return described(*arguments, **options)

        monkeypatch.setattr(client, "describe_configs", describe_late)
        admin.apply(client, [change := admin.plan_against(client, declare_topics(bus))[0]])
    assert (change.topic, change.action) == (name, "create")
    assert admin.apply_all(bus) == []


def test_two_at_once_both_succeed(bus: Bus, file: Path):
    with admin.connect(bus) as client:
        delete_topics(client, [spec.name for spec in declare_topics(bus)])
    both = [fork_server.Forked([*COMMAND, "apply", "--config", file], stderr=subprocess.PIPE, text=True) for _ in "12"]
    said = [process.communicate(timeout=BOUND_S)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert admin.apply_all(bus) == []


def test_the_command_shows_the_plan_and_then_nothing_left_to_do(bus: Bus, file: Path):
    run(file, "apply")  # the curator's changelogs, which the fixture does not make
    with admin.connect(bus) as client:
        delete_topics(client, [bus.prefix + "curated"])
    planned = json.loads(run(file, "plan", "--json").stdout)
    assert [(change["topic"], change["action"]) for change in planned] == [(bus.prefix + "curated", "create")]
    applied = run(file, "apply", "--json")
    assert json.loads(applied.stdout) == planned
    assert applied.stderr.splitlines()[-1] == "1 changes applied"
    assert run(file, "apply").stdout.strip() == "all topics are as declared"
    described = json.loads(run(file, "describe", "--json").stdout)
    assert {row["topic"] for row in described} > {spec.name for spec in declare_topics(bus)}
    assert all(row["records"] == [0] * row["partitions"] for row in described)


def test_without_a_broker_the_command_waits_says_so_and_ends_with_3(tmp_path: Path):
    file = tmp_path / "c.toml"
    file.write_text('bus.servers = "127.0.0.1:1"\nbus.wait_s = 5\n')
    done = run(file, "apply", "--json")
    assert done.returncode == 3
    assert done.stdout == ""
    assert "waiting for the broker" in done.stderr
    assert "error: no Kafka broker at 127.0.0.1:1 after 5 s" in done.stderr
