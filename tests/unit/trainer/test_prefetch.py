"""Groups are read ahead in order, held until they are taken, and counted while they are."""

import threading
from collections import Counter

import pytest

from topics.curated import CuratedGroup
from trainer.data.prefetch import Prefetcher
from trainer.data.samples import ReadyGroup

WAIT_S = 60


def group(name: str) -> CuratedGroup:
    return CuratedGroup(group_id=name, task_id="task", members=[], mean=0.0, std=0.0)


def ready(wanted: CuratedGroup) -> ReadyGroup:
    return ReadyGroup(group=wanted, samples=[], images={wanted.group_id: b"1234"}, refused=Counter(), read_ms=0.0)


def test_what_was_read_counts_until_it_is_taken_or_forgotten():
    prefetcher = Prefetcher(ready)
    for name in "abc":
        prefetcher.want(group(name))
    assert prefetcher.take(group("c")).group.group_id == "c", "read last, so all are read"
    assert prefetcher.held_bytes == 8
    prefetcher.forget(group("a"))
    assert prefetcher.held_bytes == 4
    assert prefetcher.take(group("b")).group.group_id == "b"
    assert prefetcher.held_bytes == 0
    prefetcher.close()


def test_a_group_that_is_wanted_twice_is_read_once_and_in_its_turn():
    read: list[str] = []

    def noting(wanted: CuratedGroup) -> ReadyGroup:
        read.append(wanted.group_id)
        return ready(wanted)

    prefetcher = Prefetcher(noting)
    for name in "abab":
        prefetcher.want(group(name))
    prefetcher.take(group("b"))
    assert read == ["a", "b"]
    prefetcher.close()


def test_a_group_nobody_will_take_is_not_read():
    go_on, started, read = threading.Event(), threading.Event(), []

    def slow(wanted: CuratedGroup) -> ReadyGroup:
        started.set()
        assert go_on.wait(WAIT_S)
        read.append(wanted.group_id)
        return ready(wanted)

    prefetcher = Prefetcher(slow)
    for name in "ab":
        prefetcher.want(group(name))
    assert started.wait(WAIT_S)
    prefetcher.forget(group("b"))
    go_on.set()
    prefetcher.take(group("c"))
    assert read == ["a", "c"]
    prefetcher.close()


def test_an_error_of_the_store_comes_out_where_the_group_is_taken():
    def broken(wanted: CuratedGroup) -> ReadyGroup:
        raise OSError("the database is away")

    prefetcher = Prefetcher(broken)
    prefetcher.want(group("a"))
    with pytest.raises(OSError, match="away"):
        prefetcher.take(group("a"))
    assert prefetcher.held_bytes == 0
    prefetcher.close()
