"""Dead letters that are sent back, with a producer of a few lines; the rest is tested on a real broker."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from kafka.errors import KafkaTimeoutError, MessageSizeTooLargeError

from console.repair import dead_letters
from console.runs.bundle import BundleRecord
from dart_streams.config import Bus
from dart_streams.errors import ServiceUnavailable
from topics import trajectories

SENT = SimpleNamespace(partition=0, offset=5)


def redriven(monkeypatch: pytest.MonkeyPatch, outcomes: list[Any], at_ms: int = 7) -> tuple[list[str], list[int]]:
    """Send letters back with these outcomes; return what is said of each, and from when on records were looked for."""
    found = [
        BundleRecord(partition=0, offset=offset, at_ms=at_ms, key=b"k", value=b"{}", headers=[])
        for offset in range(len(outcomes))
    ]
    asked = list[int]()
    producer = MagicMock()
    producer.partitions_for.return_value = {0}
    producer.send.return_value.get.side_effect = outcomes
    monkeypatch.setattr(dead_letters, "choose_letters", lambda *_: found)
    monkeypatch.setattr(dead_letters, "present_records", lambda *_, since_ms: asked.append(since_ms) or [])
    monkeypatch.setattr(dead_letters.sync_clients, "create_producer", lambda *_: producer)
    return [one.outcome for one in dead_letters.redrive(Bus(prefix="p."), trajectories.TOPIC)], asked


@pytest.mark.parametrize(("at_ms", "since_ms"), [(-1, 0), (7, 7)])
def test_a_letter_that_a_client_gave_no_time_is_sent_back(monkeypatch: pytest.MonkeyPatch, at_ms: int, since_ms: int):
    """Kafka has such a time as -1, from which no records can be looked for."""
    assert redriven(monkeypatch, [SENT], at_ms) == (["sent as p.trajectories[0]@5"], [since_ms])


@pytest.mark.parametrize("error", [MessageSizeTooLargeError, ValueError, TypeError, AssertionError])
def test_a_letter_that_is_refused_costs_itself_only(monkeypatch: pytest.MonkeyPatch, error: type[Exception]):
    said, _ = redriven(monkeypatch, [error("refused"), SENT])
    assert said[0].startswith("not sent: ")
    assert "refused" in said[0]
    assert said[1] == "sent as p.trajectories[0]@5"


def test_a_broker_that_does_not_answer_ends_it_and_says_how_far_it_came(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ServiceUnavailable, match="1 of 3 are done: redrive them again later"):
        redriven(monkeypatch, [SENT, KafkaTimeoutError("late"), SENT])
