"""Groups are read ahead in order, held until they are taken, and counted while they are."""

import io
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from PIL import Image

from dart_streams.config import Policy
from tests import events
from tests.waiting import wait_until
from topics.curated import CuratedGroup
from topics.values import BlobRef
from trainer.data.prefetch import GroupReader, Prefetcher
from trainer.data.samples import UNUSABLE_IMAGE, ReadyGroup, Selection, TrainingSample

WAIT_S = 60


def ready(wanted: CuratedGroup) -> ReadyGroup:
    return ReadyGroup(group=wanted, samples=[], images={wanted.group_id: b"1234"}, refused=Counter(), read_ms=0.0)


def test_what_was_read_counts_until_it_is_taken_or_forgotten():
    prefetcher = Prefetcher(ready)
    for name in "abc":
        prefetcher.want(events.curated_group(name))
    assert prefetcher.take(events.curated_group("c")).group.group_id == "c", "read last, so all are read"
    assert prefetcher.held_bytes == 8
    prefetcher.forget(events.curated_group("a"))
    assert prefetcher.held_bytes == 4
    assert prefetcher.take(events.curated_group("b")).group.group_id == "b"
    assert prefetcher.held_bytes == 0
    prefetcher.close()


def main_waits_for_a_group() -> bool:
    frame, codes = sys._current_frames()[threading.main_thread().ident], []
    while frame is not None:
        codes.append(frame.f_code)
        frame = frame.f_back
    return codes[0] is threading.Condition.wait.__code__ and Prefetcher.want.__code__ not in codes


def test_a_signal_is_handled_while_the_main_thread_waits_for_a_group():
    stop = threading.Event()

    def signalled(wanted: CuratedGroup) -> ReadyGroup:
        wait_until(main_waits_for_a_group, "the main thread's wait")
        # Handled in this thread, the signal interrupts no wait of the main one.
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        assert stop.wait(WAIT_S), "the handler did not run during the wait"
        return ready(wanted)

    before = signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        prefetcher = Prefetcher(signalled)
        assert prefetcher.take(events.curated_group("a")).group.group_id == "a"
        prefetcher.close()
    finally:
        signal.signal(signal.SIGTERM, before)


class Store:
    """Has the screenshots of a group by their names, and no steps."""

    def __init__(self, images: dict[str, bytes]) -> None:
        self.images = images

    def get_blobs(self, refs: Iterable[BlobRef]) -> dict[str, bytes]:
        return {ref.sha256: self.images[ref.sha256] for ref in refs}


class Renderer:
    """Takes no picture of one size, as a model's own processor may."""

    def expansion(self, width: int, height: int) -> list[int]:
        if (width, height) == (9, 9):
            raise ValueError("9x9 is refused by the processor")
        return [1]


def png(side: int) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (side, side)).save(stream, "PNG")
    return stream.getvalue()


def test_a_picture_that_the_model_cannot_take_costs_the_steps_that_show_it():
    images = {"a": png(8), "b": b"none", "c": png(9), "d": png(2), "e": png(8)[:48], "f": png(10)}
    shown = {0: "a", 1: "ab", 2: "c", 3: "d", 4: "e", 5: "fa"}
    samples = [
        TrainingSample(prompt=[1], answer=[2], step=step, images=[BlobRef(sha256=name, size=1) for name in names])
        for step, names in shown.items()
    ]
    selection = Selection(samples=samples)
    store: Any = Store(images)
    renderer: Any = Renderer()
    found = GroupReader(store, renderer, Policy())._images(selection)
    assert [item.step for item in selection.samples] == [0, 5]
    assert (set(found), selection.refused) == ({"a", "f"}, {UNUSABLE_IMAGE: 4})
    assert selection.example.startswith("screenshot b is no input of the model: it can't be read")


def test_a_group_that_is_wanted_twice_is_read_once_and_in_its_turn():
    read: list[str] = []
    prefetcher = Prefetcher(lambda wanted: [read.append(wanted.group_id), ready(wanted)][1])
    for name in "abab":
        prefetcher.want(events.curated_group(name))
    prefetcher.take(events.curated_group("b"))
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
        prefetcher.want(events.curated_group(name))
    assert started.wait(WAIT_S)
    prefetcher.forget(events.curated_group("b"))
    go_on.set()
    prefetcher.take(events.curated_group("c"))
    assert read == ["a", "c"]
    prefetcher.close()


def test_an_error_of_the_store_comes_out_where_the_group_is_taken():
    def broken(wanted: CuratedGroup) -> ReadyGroup:
        raise OSError("the database is away")

    prefetcher = Prefetcher(broken)
    prefetcher.want(events.curated_group("a"))
    with pytest.raises(OSError, match="away"):
        prefetcher.take(events.curated_group("a"))
    assert prefetcher.held_bytes == 0
    prefetcher.close()
