"""Of any record comes an event or Undecodable, in bounded time and memory: some of the million that are decoded by

``python -m tests.faults.generated_records``.
"""

import contextlib

import msgspec
import pytest

import topics
from dart_streams.bus.codec import Encoded, Unencodable, encode
from tests.faults import generated_records
from tests.faults.generated_records import BASES, Generator, built, measure, sent_wrongly
from tests.unit.topics.test_bounds import Path_, leaves
from topics import Topic, observations

RECORDS = 12_000
EVENTS = 500


def test_generated_records_decode_or_are_undecodable_by_contract():
    found = measure(RECORDS, seed=7)
    assert found["wrong"] == 0, found["examples"]
    assert sum(found["outcomes"].values()) == RECORDS
    assert min(found["outcomes"].values()) > 0.1 * RECORDS
    assert set(found["by_topic"]) == {topic.name for topic in topics.ALL}


@pytest.mark.parametrize("topic", topics.ALL, ids=lambda topic: topic.name)
def test_faults_are_put_into_every_field(topic: Topic):
    """Numbers stand for the items of lists in paths, and any name for the values of maps."""

    def shape(path: Path_) -> tuple[str, ...]:
        return tuple("*" if step in names_of_maps or isinstance(step, int) else step for step in path)

    kind = msgspec.inspect.type_info(topic.event)
    generator = Generator(topic, seed=7)
    names_of_maps = {"value", *(name for event in generator.events for name in event.get("metrics", ()))}
    reached = {shape(hole.path) for hole in generator.holes}
    assert {shape(path) for path, _ in leaves(kind) if path[-1] != "key"} <= reached
    assert len(generator.events) == BASES


@pytest.mark.parametrize("topic", topics.ALL, ids=lambda topic: topic.name)
def test_what_any_sender_can_build_is_refused_or_read_as_it_was_sent(topic: Topic):
    refused = 0
    for path, event in built(topic, 7, EVENTS):
        assert not (found := sent_wrongly(topic, event)), (path, found[:500])
        with contextlib.suppress(Unencodable):
            encode(topic, event)
            continue
        refused += 1
    assert 0.3 * EVENTS < refused < EVENTS


def test_an_encoder_that_refuses_too_little_is_noticed(monkeypatch: pytest.MonkeyPatch):
    def refuses_nothing(topic: Topic, event: msgspec.Struct) -> Encoded:
        return Encoded(b"", msgspec.json.encode(event), [])

    monkeypatch.setattr(generated_records, "encode", refuses_nothing)
    found = [sent_wrongly(observations.TOPIC, event) for _, event in built(observations.TOPIC, 7, 200)]
    assert any("refuse it" in one for one in found)
    assert any("Error" in one for one in found)


def test_a_decoder_that_refuses_too_little_or_too_much_is_noticed(monkeypatch: pytest.MonkeyPatch):
    def refuses_nothing(topic: Topic, value: bytes | None, headers: object) -> object:
        return msgspec.json.decode(value or b"{}")

    monkeypatch.setattr(generated_records, "decode", refuses_nothing)
    monkeypatch.setattr(generated_records, "encode", lambda topic, event: event)
    found = measure(300, seed=7)
    assert found["wrong"] > 0
    assert any("lethal value" in example for example in found["examples"])
