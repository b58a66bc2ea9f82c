"""A broker that names no brokers for a moment is asked again; one that goes on so is not available."""

import pytest
from kafka.errors import MetadataEmptyBrokerList, TopicAuthorizationFailedError

from dart_streams.bus.sync_clients import answered
from dart_streams.config import Bus
from dart_streams.errors import ServiceUnavailable


def failing(times: int, error: Exception):
    left = [error] * times

    def ask() -> str:
        if left:
            raise left.pop()
        return "there"

    return ask


def test_it_is_asked_again_until_it_says():
    assert answered(failing(3, MetadataEmptyBrokerList()), Bus(wait_s=60.0)) == "there"


def test_after_the_bound_it_is_not_available():
    with pytest.raises(ServiceUnavailable, match="MetadataEmptyBrokerList"):
        answered(failing(1_000_000, MetadataEmptyBrokerList()), Bus(wait_s=0.1))


def test_what_a_retry_cannot_mend_is_raised_at_once():
    with pytest.raises(TopicAuthorizationFailedError):
        answered(failing(1, TopicAuthorizationFailedError()), Bus(wait_s=5.0))
