"""A cluster of which a server is away is named by the doctor, and is no failure: clients go on with the others."""

import pytest

from console.cli.doctor_checks import reach

SERVERS = ["one:1", "two:2", "three:3"]


@pytest.mark.parametrize(
    ("away", "status", "said"),
    [
        (set(), "ok", "Kafka answers at one:1, two:2, three:3"),
        ({"one"}, "warn", "Kafka answers at 2 of 3 servers, not at one:1"),
        ({"two", "three"}, "warn", "Kafka answers at 1 of 3 servers, not at two:2, three:3"),
        ({"one", "two", "three"}, "fail", "no Kafka at one:1, two:2, three:3"),
    ],
)
def test_each_server_that_does_not_answer_is_named(away: set[str], status: str, said: str):
    found = reach("kafka", SERVERS, lambda host, port, limit_s: host not in away, "Kafka", "bus.servers")
    assert (found.status, found.found) == (status, said)
