"""A record's partition is the one that every Kafka client would choose."""

from aiokafka.partitioner import DefaultPartitioner
from hypothesis import given
from hypothesis import strategies as st

from dart_streams.bus.clients import partition_of


@given(st.binary(max_size=40), st.integers(1, 64))
def test_a_key_has_the_partition_of_the_clients_default(key, count):
    everywhere = list(range(count))
    assert partition_of(key, everywhere, everywhere) == DefaultPartitioner()(key, everywhere, everywhere)


@given(st.integers(1, 64))
def test_without_a_key_any_partition_that_is_there_will_do(count):
    assert partition_of(None, list(range(count)), [count - 1]) == count - 1
