"""The keyspace's replication: which one a new keyspace gets, and which existing ones are refused."""

import pytest
from cassandra.metadata import NetworkTopologyStrategy, SimpleStrategy

from dart_streams.config import Store
from dart_streams.errors import ConfigError
from dart_streams.store import replication

ONE_DC = {"dc1": 3}
TWO_DCS = {"dc1": 3, "dc2": 3}


@pytest.mark.parametrize(
    ("store", "nodes", "value"),
    [
        (Store(), {"datacenter1": 1}, "{'class': 'NetworkTopologyStrategy', 'datacenter1': 1}"),
        (Store(replication=3), ONE_DC, "{'class': 'NetworkTopologyStrategy', 'dc1': 3}"),
        (Store(replication=2, local_dc="dc2"), TWO_DCS, "{'class': 'NetworkTopologyStrategy', 'dc2': 2}"),
        (Store(), {"o'dc": 1}, "{'class': 'NetworkTopologyStrategy', 'o''dc': 1}"),
    ],
)
def test_a_new_keyspace_has_the_declared_copies_in_its_datacenter(store, nodes, value):
    assert replication.new_replication(store, nodes) == value


@pytest.mark.parametrize(
    ("store", "nodes", "text"),
    [
        (Store(replication=4), ONE_DC, "store.replication is 4, and datacenter dc1 has 3 of as many nodes"),
        (Store(), TWO_DCS, "store.local_dc"),
        (Store(local_dc="dc9"), TWO_DCS, "in dc1, dc2: name one of these"),
    ],
)
def test_a_keyspace_that_could_not_answer_is_refused(store, nodes, text):
    with pytest.raises(ConfigError, match=text):
        replication.new_replication(store, nodes)


@pytest.mark.parametrize(
    ("copies", "strategy"),
    [
        (0, SimpleStrategy({"replication_factor": 1})),
        (0, NetworkTopologyStrategy({"dc1": "1"})),
        (3, NetworkTopologyStrategy({"dc1": "3"})),
    ],
)
def test_a_keyspace_with_the_declared_copies_is_accepted(copies, strategy):
    replication.refuse_other(Store(replication=copies), ONE_DC, strategy)


@pytest.mark.parametrize(
    "strategy",
    [
        SimpleStrategy({"replication_factor": 3}),
        NetworkTopologyStrategy({"dc1": "1"}),
        NetworkTopologyStrategy({"dc2": "3"}),
        None,
    ],
)
def test_another_replication_is_refused_with_the_statement_to_run(strategy):
    with pytest.raises(ConfigError, match=r"ALTER KEYSPACE dart WITH .*'dc1': 3.*nodetool repair -full dart"):
        replication.refuse_other(Store(replication=3), ONE_DC, strategy)
