"""A connection that kafka-python closed itself is no error, also where its reader wakes once more; a lost one is."""

import logging
import socket
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest
from kafka.net.transport import KafkaTCPTransport

from dart_streams.bus import sync_clients
from dart_streams.config import Bus

LOGGER = logging.getLogger("kafka.net.transport")


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[KafkaTCPTransport, socket.socket]]:
    """A transport of kafka-python and the broker's end of its connection, with the logging that a client gets."""
    monkeypatch.setattr(sync_clients, "await_broker", Mock())
    monkeypatch.setattr(LOGGER, "filters", [])
    for _ in range(2):
        sync_clients.connect(Mock(), Bus())
    assert len(LOGGER.filters) == 1
    ours, brokers = socket.socketpair()
    ours.setblocking(False)
    with ours, brokers:
        yield KafkaTCPTransport(Mock(), ours), brokers


def said(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [record.getMessage().split(": ")[1] for record in caplog.records if record.name == LOGGER.name]


def test_a_reader_that_wakes_after_a_close_says_nothing(connection, caplog):
    transport, _ = connection
    transport.close()
    data, error = transport._sock_recv()
    assert (data, type(error).__name__) == (b"", "KafkaConnectionError"), "the race is still there"
    assert said(caplog) == []


def test_a_connection_closed_by_the_broker_is_logged(connection, caplog):
    transport, brokers = connection
    brokers.close()
    _, error = transport._sock_recv()
    transport.abort(error)
    assert said(caplog) == ["socket disconnected", "Abort (KafkaConnectionError"]
