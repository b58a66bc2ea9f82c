"""Deaths are counted by what the committed offset of a partition says, whoever is assigned it next."""

from hypothesis import given
from hypothesis import strategies as st

from workers.runtime.death_counts import NOTE_BYTES, DeathCounts, DeathNote, read_note
from workers.runtime.in_flight import TrackedOffset


def at(offset: int, partition: int = 0) -> TrackedOffset[int]:
    return TrackedOffset(partition, offset)


def taken_over(text: str, committed: int) -> DeathCounts[int]:
    counts: DeathCounts[int] = DeathCounts()
    counts.assign(0, committed, read_note(text))
    counts.learn(read_note(text))
    return counts


def test_what_a_member_had_begun_when_it_died_has_seen_one_more_death():
    first = taken_over("", 10)
    for offset in (10, 11, 12):
        first.begin(at(offset))
    first.finish([at(11)])
    second = taken_over(first.note(0, 10), 10)
    assert [second.deaths(at(offset)) for offset in (10, 11, 12, 13)] == [1, 0, 1, 0]
    second.begin(at(12))
    third = taken_over(second.note(0, 11), 11)
    assert [third.deaths(at(offset)) for offset in (10, 11, 12)] == [0, 0, 2]


def test_what_is_given_up_in_order_has_seen_no_death_and_earlier_ones_are_kept():
    first = taken_over("", 5)
    first.begin(at(5))
    second = taken_over(first.note(0, 5), 5)
    second.begin(at(5))
    second.begin(at(6))
    third = taken_over(second.note(0, 5, given_up=True), 5)
    assert (third.deaths(at(5)), third.deaths(at(6))) == (1, 0)


def test_a_member_that_begins_nothing_commits_no_text_and_a_stranger_s_is_passed_over():
    assert DeathCounts[int]().note(0, 7) == ""
    for text in ("consumer-1", "[1]", '{"begun": "all"}', "\ud800", '{"deaths": {"x": 1}}'):
        assert read_note(text) == DeathNote()


def test_a_partition_that_is_revoked_is_forgotten_and_names_are_not():
    counts = taken_over('{"begun":[0]}', 3)
    assert counts.add_lethal("task") == 1
    counts.revoke([0])
    assert counts.deaths(at(3)) == 0
    assert taken_over(counts.note(1, 0), 0).lethal == {"task": 1}


@given(
    begun=st.sets(st.integers(0, 3000), max_size=2500),
    deaths=st.dictionaries(st.integers(0, 3000), st.integers(1, 9), max_size=500),
    lethal=st.dictionaries(st.text(max_size=512), st.integers(1, 9), max_size=30),
)
def test_a_note_is_within_what_a_broker_takes_and_has_the_first_records(begun, deaths, lethal):
    counts: DeathCounts[int] = DeathCounts()
    counts.assign(0, 100, DeathNote(deaths=deaths, lethal=lethal))
    counts.learn(DeathNote(lethal=lethal))
    for distance in begun:
        counts.begin(at(100 + distance))
    text = counts.note(0, 100)
    assert len(text.encode()) <= NOTE_BYTES
    found = read_note(text)
    assert list(found.begun) == sorted(begun)[: len(found.begun)]
    assert found.deaths.items() <= deaths.items()
    assert found.lethal.items() <= lethal.items()
