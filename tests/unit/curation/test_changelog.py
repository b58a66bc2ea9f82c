from hypothesis import given
from hypothesis import strategies as st

from dart_streams.curation.changelog import ChangelogView, claim_key, entry_key, parse_key, snapshot_key

KEYS = [
    *(make(0, incarnation) for incarnation in (1, 2, 9) for make in (claim_key, snapshot_key)),
    *(entry_key(0, incarnation, slot) for incarnation in (1, 2, 9) for slot in (0, 1)),
    b"0/snapshot",
    b"0/entry/1",
]
RECORDS = st.lists(st.tuples(st.sampled_from(KEYS), st.none() | st.binary(max_size=3)), max_size=30)


def view_of(records):
    view = ChangelogView()
    for offset, (key, value) in records:
        view.note(offset, key, value)
    return view


@given(RECORDS, st.randoms())
def test_records_noted_in_any_order_and_twice_are_as_if_read_once_in_order(records, rng):
    read = list(enumerate(records))
    shuffled = [*read, *read]
    rng.shuffle(shuffled)
    ordered = view_of(read)
    assert ordered.stored() == view_of(shuffled).stored()
    assert ordered.claimed == view_of(shuffled).claimed
    assert ordered.position == len(records)


@given(RECORDS, st.integers(0, 29))
def test_the_position_stays_at_a_record_that_is_not_known(records, missing):
    read = [entry for entry in enumerate(records) if entry[0] != missing]
    assert view_of(read).position == min(missing, len(records))


@given(RECORDS)
def test_reading_in_order_goes_past_what_was_compacted_away(records):
    newest = {key: offset for offset, (key, _) in enumerate(records)}
    view = ChangelogView()
    for offset, (key, value) in enumerate(records):
        if newest[key] == offset:
            view.note_read(offset, key, value)
    assert view.position == len(records)
    assert view.stored() == view_of(enumerate(records)).stored()


@given(RECORDS)
def test_a_new_owner_has_a_number_of_its_own_above_all_others(records):
    view = view_of(enumerate(records))
    chosen = {view.next_incarnation() for _ in range(3)}
    assert len(chosen) == 3
    assert min(chosen) > max((parse_key(key).incarnation for key, _ in records), default=0)


def test_the_highest_claim_counts_and_former_owners_are_superseded():
    view = view_of([(0, (claim_key(0, 5), b"a")), (1, (claim_key(0, 3), b"b"))])
    assert (view.claimed, view.claimed_at) == (5, 0)
    keys = [b"0/entry/0", entry_key(0, 3, 0), snapshot_key(0, 4), entry_key(0, 5, 0), claim_key(0, 5)]
    view = view_of((offset, (key, b"x")) for offset, key in enumerate(keys))
    assert view.superseded(4) == keys[:2]
    view.note(5, keys[0], None)
    assert view.superseded(4) == keys[1:2]
