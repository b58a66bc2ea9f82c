"""A broker that names no brokers for a moment is asked again; one that goes on so is not available."""

import itertools
import time
from types import SimpleNamespace

import pytest
from kafka import TopicPartition
from kafka.errors import MetadataEmptyBrokerList, TopicAuthorizationFailedError

from dart_streams.bus import sync_clients
from dart_streams.bus.sync_clients import ask_until_answered
from dart_streams.config import Bus
from dart_streams.errors import ServiceUnavailable
from topics import trajectories


def failing(times: int, error: Exception):
    left = [error] * times

    def ask() -> str:
        if left:
            raise left.pop()
        return "there"

    return ask


def test_it_is_asked_again_up_to_the_bound_if_a_retry_can_mend_it():
    assert ask_until_answered(failing(3, MetadataEmptyBrokerList()), Bus(wait_s=60.0)) == "there"
    with pytest.raises(ServiceUnavailable, match="MetadataEmptyBrokerList"):
        ask_until_answered(failing(1_000_000, MetadataEmptyBrokerList()), Bus(wait_s=0.1))
    with pytest.raises(TopicAuthorizationFailedError):
        ask_until_answered(failing(1, TopicAuthorizationFailedError()), Bus(wait_s=5.0))


class Endless(sync_clients.TopicReader):
    """Reads ever new records of one partition, and none of the other."""

    def __init__(self) -> None:
        self.bus, self.topic, self.read = Bus(wait_s=0.05), trajectories.TOPIC, 0

    def has_reached(self, ends: object) -> bool:
        return False

    def poll(self, timeout_ms: int) -> list[SimpleNamespace]:
        time.sleep(0.005)
        self.read += 1
        return [SimpleNamespace(topic="t", partition=0, offset=100 + self.read)]


def test_a_leaderless_partition_is_noticed_beside_new_records(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sync_clients, "CHECK_INTERVAL_S", 0.01)
    ends = {TopicPartition("t", 0): 100, TopicPartition("t", 1): 5}
    with pytest.raises(ServiceUnavailable, match=r"no record of .* arrived"):
        list(itertools.islice(Endless().read_to_end(ends), 1000))
