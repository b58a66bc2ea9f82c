from hypothesis import given
from hypothesis import strategies as st

from dart_streams.curation.groups import PooledSuccess, add_to_pool, draw_from_pool


def success(name):
    return PooledSuccess(trajectory_id=f"t{name}", order_id=f"o{name}", reward=1.0, steps=3)


def filled(names, size, demonstration=False):
    stored = []
    for name in names:
        add_to_pool(stored, success(name), size, demonstration)
    return [one.order_id.removeprefix("o") for one in stored]


def test_only_online_successes_replace_the_oldest_and_none_is_there_twice():
    assert filled("abcdef", 4) == list("cdef")
    assert filled("abcdef", 4, demonstration=True) == list("abcd")
    stored = []
    for name in "ab":
        add_to_pool(stored, success(name), 2, demonstration=True)
    add_to_pool(stored, success("c"), 2, demonstration=False)
    assert [one.order_id for one in stored] == ["ob", "oc"]
    assert filled("aab", 4) == ["a", "b"]


@given(st.integers(1, 8), st.integers(0, 3), st.text())
def test_a_group_always_draws_the_same_success(size, seed, group_id):
    stored = [success(str(number)) for number in range(size)]
    assert draw_from_pool(stored, "task", group_id, seed) == draw_from_pool(list(stored), "task", group_id, seed)


def test_different_groups_draw_different_successes():
    stored = [success(str(number)) for number in range(4)]
    drawn = {draw_from_pool(stored, "task", f"g{number}", 0).order_id for number in range(64)}
    assert drawn == {"o0", "o1", "o2", "o3"}
    assert draw_from_pool([], "task", "g000000", 0) is None


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=50), st.integers(0, 5))
def test_a_pool_never_exceeds_its_size(added, size):
    stored = []
    for name, demonstration in added:
        add_to_pool(stored, success(name), size, demonstration)
        assert len(stored) <= size
