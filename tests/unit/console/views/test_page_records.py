"""The newest records of a topic are the same, from wherever one began to read."""

from hypothesis import given
from hypothesis import strategies as st

from console.runs.bundle import BundleRecord
from console.views.page.records import last_of_each_partition, newest_records

TIMES = st.lists(st.lists(st.integers(0, 9), max_size=9), max_size=3)
"""Of each partition, in the order of its offsets, in which several producers' times are not."""


def record(partition: int, offset: int, at_ms: int) -> BundleRecord:
    return BundleRecord(partition, offset, at_ms, b"k", b"odd" if offset % 2 else b"even", [])


@given(TIMES, st.integers(1, 5), st.randoms())
def test_a_topic_read_from_near_its_end_gives_what_a_bundle_gives(times, limit, rng):
    partitions = [[record(number, *each) for each in enumerate(found)] for number, found in enumerate(times)]
    whole = [one for partition in partitions for one in partition]
    ends = [partition[-limit:] for partition in partitions]
    turns = [number for number, end in enumerate(ends) for _ in end]
    rng.shuffle(turns)
    in_turns = [iter(end) for end in ends]
    found = newest_records(last_of_each_partition(whole, limit), b"", limit)
    assert newest_records((next(in_turns[turn]) for turn in turns), b"", limit) == found
    assert len(found) == min(limit, len(whole))
    assert [one.at_ms for one in found] == sorted((one.at_ms for one in found), reverse=True)


def test_a_search_finds_the_newest_that_have_it():
    records = [record(0, offset, offset) for offset in range(8)]
    assert [one.offset for one in newest_records(records, b"odd", 3)] == [7, 5, 3]
    assert newest_records(records, b"nowhere", 3) == []
