"""Blobs: cut, joined and cached without a database."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_streams.config import Store
from dart_streams.errors import ConfigError
from dart_streams.store import blobs, schema, sessions
from dart_streams.store.blobs import BlobCache, MissingBlob


@given(size=st.sampled_from([0, 1, blobs.CHUNK_BYTES - 1, blobs.CHUNK_BYTES, blobs.CHUNK_BYTES + 1, 700_000]))
def test_a_blob_cut_into_chunks_is_whole_again(size):
    data = bytes(size)
    pieces = blobs.split_chunks(data)
    assert all(len(piece) <= blobs.CHUNK_BYTES for piece in pieces)
    assert blobs.join_chunks(blobs.ref_of(data, "image/png", 1, 1), pieces) == data


def test_a_blob_that_is_not_there_or_torn_or_damaged_says_so():
    data = bytes(300_000)
    ref = blobs.ref_of(data, "image/png", 1, 1)
    for pieces, why in (
        ([], "not in the store"),
        (blobs.split_chunks(data)[:1], "only 262144 bytes"),
        ([b"x" + data[1:]], "another digest; an environment that shows this screen again writes it anew"),
    ):
        with pytest.raises(MissingBlob, match=why):
            blobs.join_chunks(ref, pieces)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 60)), max_size=60))
def test_the_cache_stays_bounded_and_returns_the_last_value(puts):
    cache = BlobCache(limit_bytes=100)
    for name, size in puts:
        cache.put(str(name), bytes(size))
        assert cache.get(str(name)) == bytes(size)
        assert cache.bytes == sum(len(cache.get(str(n)) or b"") for n in range(10)) <= 100


def test_the_cache_forgets_what_was_used_longest_ago_and_takes_no_larger():
    cache = BlobCache(limit_bytes=10)
    cache.put("a", bytes(5))
    cache.put("b", bytes(5))
    assert cache.get("a") is not None
    cache.put("c", bytes(5))
    assert (cache.get("a") is not None, cache.get("b"), cache.get("c") is not None) == (True, None, True)
    cache = BlobCache(limit_bytes=10)
    cache.put("small", bytes(5))
    cache.put("large", bytes(11))
    assert cache.get("small") == bytes(5)
    assert cache.get("large") is None


def test_every_schema_statement_is_repeatable_and_has_a_table_of_its_own():
    statements = schema.schema_statements("somewhere")
    assert all("IF NOT EXISTS somewhere" in statement for statement in statements)
    assert [schema.table_of(statement) for statement in statements] == [
        *("", "schema_version", "blobs", "steps", "trajectories", "trajectories_by_task", "trained", "epochs"),
    ]


@pytest.mark.parametrize("keyspace", ["", "Upper", "1st", "a-b", "a; DROP", "x" * 49])
def test_a_keyspace_that_is_no_name_is_refused_before_anything_is_sent(keyspace):
    with pytest.raises(ConfigError, match=r"store\.keyspace"):
        sessions.connect(Store(keyspace=keyspace))
