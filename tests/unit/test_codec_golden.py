"""The contract in bytes: what other programs have written is read, and what they read is written, for ever the same.

A golden file is one record, ``<topic>.v<version>.json``. Never edit one: a changed event gets a new version and file.
"""

from pathlib import Path

import msgspec
import pytest

import topics
from dart_streams.bus.codec import decode, encode
from topics import Topic


class Record(msgspec.Struct, forbid_unknown_fields=True):
    key: str
    headers: dict[str, str]
    value: str

    @property
    def header_list(self) -> list[tuple[str, bytes]]:
        return [(name, text.encode()) for name, text in self.headers.items()]


FILES = sorted((Path(__file__).parent / "golden").glob("*.json"))


def parts(file: Path) -> tuple[Topic, int, Record]:
    name, _, version = file.stem.rpartition(".v")
    return topics.BY_NAME[name], int(version), msgspec.json.decode(file.read_bytes(), type=Record)


def newest(topic: Topic) -> Record:
    file = Path(__file__).parent / "golden" / f"{topic.name}.v{topic.version}.json"
    assert file.exists(), f"write {file.name}: a record of the present version of {topic.name}"
    return msgspec.json.decode(file.read_bytes(), type=Record)


@pytest.mark.parametrize("topic", topics.ALL, ids=lambda topic: topic.name)
def test_an_event_becomes_exactly_these_bytes(topic: Topic):
    golden = newest(topic)
    event = decode(topic, golden.value.encode(), golden.header_list)
    record = encode(topic, event, record_id=golden.headers["id"])
    assert record.value.decode() == golden.value
    assert record.key.decode() == golden.key
    assert record.headers == golden.header_list


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_version_ever_written_is_still_read(file: Path):
    topic, version, golden = parts(file)
    assert golden.headers["schema"] == f"{topic.name}/{version}"
    assert isinstance(decode(topic, golden.value.encode(), golden.header_list), topic.event)


@pytest.mark.parametrize("topic", topics.ALL, ids=lambda topic: topic.name)
def test_a_record_from_before_a_defaulted_field_existed_is_read(topic: Topic):
    golden = newest(topic)
    fields = msgspec.json.decode(golden.value)
    defaulted = [f for f in msgspec.structs.fields(topic.event) if not f.required]
    for field in defaulted:
        older = msgspec.json.encode({name: value for name, value in fields.items() if name != field.encode_name})
        assert getattr(decode(topic, older, golden.header_list), field.name) == field.default
