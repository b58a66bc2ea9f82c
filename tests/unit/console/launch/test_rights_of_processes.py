"""Rights of each kind of process: no more than it uses, whichever the prefix."""

import re

import msgspec
import pytest

import topics
from console.launch import access_rights
from dart_streams.config import Bus, Config, Curation, FeedbackRules, Tasks
from dart_streams.config.tasks import TaskSet
from dart_streams.config.tracker import Tracker
from dart_streams.curation.agents import bind_agents
from dart_streams.errors import UserError
from tests.sources import ROOT

CONFIG = Config(bus=Bus(prefix="x."))
SOURCES = {
    "env": "workers/env/main.py",
    "rollout": "workers/rollout/main.py",
    "recorder": "workers/recorder/main.py",
    "trainer": "trainer/data/consumer.py",
}


def names(kind: str, operation: str, config: Config = CONFIG) -> set[str]:
    rights = access_rights.rights_of(kind, config, kind)
    return {right.name for right in rights if right.resource == "topic" and operation in right.operations}


def test_an_environment_worker_writes_nothing_that_is_trained_on():
    assert names("env", "Write") == {"x.observations", "x.action-requests", "x.rollout-orders.dlq", "x.actions.dlq"}
    assert names("env", "Read") == {"x.rollout-orders", "x.actions"}
    config = msgspec.structs.replace(CONFIG, feedback=FeedbackRules(enabled=True))
    assert names("env", "Read", config) == {"x.rollout-orders", "x.actions", "x.feedback"}
    assert "x.feedback" not in names("env", "Write", config)


def test_only_the_trainer_writes_weights():
    writers = [kind for kind in access_rights.KINDS if kind != "run" and "x.weights" in names(kind, "Write")]
    assert writers == ["trainer"]


@pytest.mark.parametrize("kind", access_rights.VIEWERS)
def test_who_only_looks_on_writes_nothing(kind):
    assert names(kind, "Write") == set()


@pytest.mark.parametrize(
    ("kind", "written"), [("feedback", {"x.feedback", "x.actions"}), ("demonstrate", {"x.rollout-orders", "x.actions"})]
)
def test_a_command_of_a_person_writes_only_what_the_person_gives(kind: str, written: set[str]):
    assert names(kind, "Write") == written
    assert names(kind, "Read") == {"x."}


@pytest.mark.parametrize("kind", [kind for kind in access_rights.KINDS if kind != "run"])
def test_no_worker_makes_or_removes_a_topic(kind):
    for operation in ("Create", "Delete", "Alter", "AlterConfigs"):
        assert names(kind, operation) == set()


@pytest.mark.parametrize("proposals", [False, True])
@pytest.mark.parametrize("mode", ["rollout-wise", "coupled"])
def test_the_curator_may_what_its_agents_do(proposals, mode):
    dispatch = msgspec.structs.replace(Curation().dispatch, mode=mode)
    config = msgspec.structs.replace(CONFIG, tasks=Tasks(proposals=proposals), curation=Curation(dispatch=dispatch))
    agents = bind_agents(config, TaskSet([]))
    assert {"x." + topic.name for agent in agents for topic in agent.inputs} <= names("curator", "Read", config)
    assert {"x." + topic.name for agent in agents for topic in agent.outputs} <= names("curator", "Write", config)


@pytest.mark.parametrize("kind", SOURCES)
def test_the_group_is_the_one_that_the_process_joins(kind):
    [group] = re.findall(r'^GROUP = "(\w+)"', (ROOT / SOURCES[kind]).read_text(), re.M)
    assert access_rights.use_of(kind, CONFIG).groups == (group,)


def test_a_tracker_has_rights_only_where_there_is_one():
    assert access_rights.rights_of("tracker", CONFIG, "t") == []
    config = msgspec.structs.replace(CONFIG, tracker=Tracker(tool="tensorboard"))
    assert names("tracker", "Read", config) == {"x.trained"}


def test_every_topic_is_read_and_written_by_some_process():
    config = msgspec.structs.replace(CONFIG, tasks=Tasks(proposals=True), tracker=Tracker(tool="tensorboard"))
    config = msgspec.structs.replace(config, feedback=FeedbackRules(enabled=True))
    workers = [kind for kind in access_rights.KINDS if kind not in ("run", *access_rights.VIEWERS)]
    read = set.union(*(names(kind, "Read", config) for kind in workers))
    written = set.union(*(names(kind, "Write", config) for kind in workers))
    every = {"x." + topic.name for topic in topics.ALL}
    assert every - written == {"x.tasks"}, "a command writes it, with the login `run`"
    assert every <= read


def test_an_unknown_kind_is_refused_with_the_known_ones():
    with pytest.raises(UserError, match="use one of env, rollout"):
        access_rights.rights_of("envs", CONFIG, "dart-envs")


def test_each_operation_is_one_acl_of_the_client():
    for right in access_rights.rights_of("run", CONFIG, "dart-run"):
        assert len(access_rights.acls_of(right)) == len(right.operations)
