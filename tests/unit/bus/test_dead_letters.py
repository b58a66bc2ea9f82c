"""A letter has the whole record where one can carry it, and otherwise what identifies it."""

import hashlib
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_streams.bus import dead_letters
from dart_streams.bus.codec import UNREADABLE, Header, find_header
from dart_streams.bus.dead_letters import HEAD_BYTES, STUB, letter_of
from dart_streams.bus.topology import letter_bytes
from topics import observations

TOPIC = observations.TOPIC
LIMIT = letter_bytes(TOPIC)


class Read(NamedTuple):
    key: bytes | None = b"key"
    value: bytes | None = b"value"
    headers: tuple[Header, ...] = ()
    topic: str = "dart.x.observations"
    partition: int = 3
    offset: int = 17


def letter(record: Read) -> dead_letters.Letter:
    return letter_of(TOPIC, record, dead_letters.place_headers(record, "why", 1, 5))


def test_a_record_that_fits_is_whole_even_at_its_topic_s_own_limit():
    for size in (0, 1, TOPIC.max_message_bytes):
        record = Read(value=b"x" * size, headers=(("id", b"r"),))
        made = letter(record)
        assert (made.key, made.value, find_header(made.headers, STUB)) == (record.key, record.value, None)
        assert made.headers[0] == ("id", b"r")


def test_what_has_no_key_and_value_or_stands_for_a_batch_is_a_stub():
    made = letter(Read(key=None, value=None))
    assert (made.key, made.value) == (None, b"")
    assert b"neither key nor value" in find_header(made.headers, STUB)
    assert find_header(made.headers, dead_letters.SIZE) is None
    made = letter(Read(key=None, value=b"head", headers=((UNREADABLE, b"a batch"),)))
    assert find_header(made.headers, STUB) == b"a batch"


@pytest.mark.parametrize("value", [b"x" * (8 << 20), b"0123456789" * (LIMIT // 10)])
def test_a_value_that_is_too_large_leaves_size_digest_head_and_place(value: bytes):
    made = letter(Read(value=value))
    facts = dict(made.headers)
    assert facts[dead_letters.SIZE] == str(len(value)).encode()
    assert facts[dead_letters.SHA256] == hashlib.sha256(value).hexdigest().encode()
    assert (made.key, made.value) == (b"key", value[:HEAD_BYTES])
    place = [facts[name] for name in (dead_letters.TOPIC, dead_letters.PARTITION, dead_letters.OFFSET)]
    assert place == [b"dart.x.observations", b"3", b"17"]


@given(
    st.one_of(st.none(), st.integers(0, 2 * LIMIT)),
    st.one_of(st.none(), st.integers(0, 2 * LIMIT)),
    st.lists(st.tuples(st.text(max_size=8), st.one_of(st.none(), st.integers(0, LIMIT))), max_size=4),
)
def test_every_letter_can_be_produced(key, value, headers):
    sized = tuple((name, None if size is None else bytes(size)) for name, size in headers)
    record = Read(None if key is None else bytes(key), None if value is None else bytes(value), sized)
    made = letter(record)
    assert made.key is not None or made.value is not None
    taken = len(made.key or b"") + len(made.value or b"")
    taken += sum(len(name.encode()) + len(held or b"") for name, held in made.headers)
    assert taken + dead_letters.OVERHEAD_BYTES <= LIMIT
    if find_header(made.headers, STUB) is None:
        assert (made.key, made.value) == (record.key, record.value)
