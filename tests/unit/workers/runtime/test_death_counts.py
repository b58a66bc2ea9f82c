"""Deaths are counted by what the committed offset of a partition says, whoever is assigned it next."""

from hypothesis import given
from hypothesis import strategies as st

from workers.runtime.death_counts import NOTE_BYTES, DeathCounts, DeathNote, read_note


def assigned(*texts: str, others: tuple[str, ...] = ()) -> DeathCounts[int]:
    """Return the counts of a member that is assigned partitions with these texts."""
    counts: DeathCounts[int] = DeathCounts()
    for text in texts:
        counts.learn(read_note(text), died=True)
    for text in others:
        counts.learn(read_note(text), died=False)
    return counts


def test_what_a_member_had_begun_when_it_died_has_seen_one_more_death():
    first = assigned("")
    for number, name in enumerate(("a", "b", "b", "c")):
        first.begin(0, f"order {number}", name)
    first.finish("order 3", "c")
    second = assigned(first.note(0))
    assert second.deaths == {"a": 1, "b": 1}
    second.begin(0, "order 1", "b")
    assert assigned(second.note(0)).deaths == {"a": 1, "b": 2}
    second.finish("order 1", "b")
    assert assigned(second.note(0)).deaths == {"a": 1}, "this member has survived it"


def test_one_death_counts_once_and_living_or_giving_up_is_none():
    first = assigned("", "")
    first.begin(0, "order 0", "a")
    first.begin(1, "order 1", "a")
    assert assigned(first.note(0), first.note(1)).deaths == {"a": 1}
    first = assigned("")
    first.begin(1, "order 1", "a")
    assert assigned("", others=(first.note(1),)).deaths.get("a", 0) == 0
    first = assigned("")
    first.begin(0, "order 0", "a")
    second = assigned(first.note(0))
    second.begin(0, "order 0", "a")
    second.begin(0, "order 1", "b")
    assert assigned(second.note(0, given_up=True)).deaths == {"a": 1}


def test_an_idle_member_commits_no_text_and_ignores_foreign_text():
    assert DeathCounts[int]().note(0) == ""
    for text in ("consumer-1", "[1]", '{"begun": "all"}', "\ud800", '{"deaths": {"x": "y"}}'):
        assert read_note(text) == DeathNote()


def test_a_revoked_partition_is_forgotten_but_lethal_names_stay():
    counts = assigned('{"deaths":{"a":2}}')
    assert (counts.add_lethal("a"), counts.add_lethal("a")) == (1, 2)
    counts.begin(0, "order", "a")
    counts.revoke([0])
    assert (counts.in_hand, counts.deaths) == (set(), {})
    assert assigned(counts.note(1)).lethal == {"a": 2}


names = st.text(max_size=512)


@given(
    begun=st.sets(names, max_size=200),
    deaths=st.dictionaries(names, st.integers(1, 9), max_size=60),
    lethal=st.dictionaries(names, st.integers(1, 9), max_size=30),
)
def test_a_note_is_within_what_a_broker_takes_and_says_nothing_else(begun, deaths, lethal):
    counts: DeathCounts[int] = DeathCounts()
    counts.learn(DeathNote(deaths=deaths, lethal=lethal), died=False)
    for number, name in enumerate(begun):
        counts.begin(0, str(number), name)
    text = counts.note(0)
    assert len(text.encode()) <= NOTE_BYTES
    found = read_note(text)
    assert begun.issuperset(found.begun)
    assert found.deaths.items() <= deaths.items()
    assert found.lethal.items() <= lethal.items()
